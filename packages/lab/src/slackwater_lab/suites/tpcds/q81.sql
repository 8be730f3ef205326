-- Customers of a state who return a fifth more by catalog than the mean customer of the state of the return.
WITH returned AS (
    SELECT cr_returning_customer_sk AS customer, ca_state AS state, sum(cr_return_amt_inc_tax) AS amount
    FROM catalog_returns
    JOIN date_dim ON d_date_sk = cr_returned_date_sk
    JOIN customer_address ON ca_address_sk = cr_returning_addr_sk
    WHERE d_year = 2001
    GROUP BY cr_returning_customer_sk, ca_state
)
SELECT TRANSACTIONALLY
    c_customer_id, c_salutation, c_first_name, c_last_name, ca_street_number, ca_street_name, ca_street_type, ca_suite_number,
    ca_city, ca_county, ca_state, ca_zip, ca_country, ca_gmt_offset, ca_location_type, amount
FROM returned AS r
JOIN customer ON c_customer_sk = r.customer
JOIN customer_address ON ca_address_sk = c_current_addr_sk
WHERE ca_state = 'MT' AND r.amount > (SELECT 1.2 * avg(o.amount) FROM returned AS o WHERE o.state = r.state)
ORDER BY
    c_customer_id, c_salutation, c_first_name, c_last_name, ca_street_number, ca_street_name, ca_street_type, ca_suite_number,
    ca_city, ca_county, ca_state, ca_zip, ca_country, ca_gmt_offset, ca_location_type, amount
LIMIT 100;
