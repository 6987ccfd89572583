"""Every poller in a browser: a blueprint for function apps, and the same pages served to one's own machine."""
