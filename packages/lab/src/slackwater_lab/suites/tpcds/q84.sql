-- Customers of a city and an income band whose kind of people has returned something.
SELECT TRANSACTIONALLY c_customer_id AS customer, coalesce(c_last_name, '') || ', ' || coalesce(c_first_name, '') AS name
FROM customer
JOIN customer_address ON ca_address_sk = c_current_addr_sk
JOIN customer_demographics ON cd_demo_sk = c_current_cdemo_sk
JOIN household_demographics ON hd_demo_sk = c_current_hdemo_sk
JOIN income_band ON ib_income_band_sk = hd_income_band_sk
JOIN store_returns ON sr_cdemo_sk = cd_demo_sk
WHERE ca_city = 'Hopewell' AND ib_lower_bound >= 30001 AND ib_upper_bound <= 80001
ORDER BY c_customer_id, name
LIMIT 4;
