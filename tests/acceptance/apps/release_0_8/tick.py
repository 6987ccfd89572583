"""Runs every timer function of an app once, in whichever release is installed: ``tick.py APP_DIRECTORY``."""

import sys

sys.path.insert(0, sys.argv[1])

import azure_functions_db
import function_app

print(azure_functions_db.__version__)
for function in function_app.app.get_functions():
    if function.get_trigger().type == "timerTrigger":
        function.get_user_function()(timer=None)
