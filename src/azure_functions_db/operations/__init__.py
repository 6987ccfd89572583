"""What `azfdb` knows how to do, as plain functions on plain data: for its screens, dashboards and scripts."""
