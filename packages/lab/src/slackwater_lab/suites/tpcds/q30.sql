-- Customers of a state who return a fifth more on the web than the mean customer of the state of the return.
WITH returned AS (
    SELECT wr_returning_customer_sk AS customer, ca_state AS state, sum(wr_return_amt) AS amount
    FROM web_returns
    JOIN date_dim ON d_date_sk = wr_returned_date_sk
    JOIN customer_address ON ca_address_sk = wr_returning_addr_sk
    WHERE d_year = 2001
    GROUP BY wr_returning_customer_sk, ca_state
)
SELECT TRANSACTIONALLY
    c_customer_id, c_salutation, c_first_name, c_last_name, c_preferred_cust_flag, c_birth_day, c_birth_month, c_birth_year,
    c_birth_country, c_login, c_email_address, c_last_review_date_sk, amount
FROM returned AS r
JOIN customer ON c_customer_sk = r.customer
JOIN customer_address ON ca_address_sk = c_current_addr_sk
WHERE ca_state = 'IN' AND r.amount > (SELECT 1.2 * avg(o.amount) FROM returned AS o WHERE o.state = r.state)
ORDER BY
    c_customer_id, c_salutation, c_first_name, c_last_name, c_preferred_cust_flag, c_birth_day, c_birth_month, c_birth_year,
    c_birth_country, c_login, c_email_address, c_last_review_date_sk, amount
LIMIT 100;
