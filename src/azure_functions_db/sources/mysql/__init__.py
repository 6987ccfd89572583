"""The binary log of MySQL and MariaDB."""
