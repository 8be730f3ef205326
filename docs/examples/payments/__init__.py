"""Two services and a view over both; tests/system/test_payments.py runs them."""
