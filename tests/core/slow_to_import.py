"""What a fork server has to import may take long."""

import time

time.sleep(1000)
