-- Customers who bought on a weekend in a city where they do not live, with what they saved.
SELECT TRANSACTIONALLY c_last_name, c_first_name, home.ca_city, bought_in, ticket, coupons, profit
FROM (
    SELECT ss_ticket_number AS ticket, ss_customer_sk AS customer, ca_city AS bought_in, sum(ss_coupon_amt) AS coupons,
        sum(ss_net_profit) AS profit
    FROM store_sales
    JOIN date_dim ON d_date_sk = ss_sold_date_sk
    JOIN store ON s_store_sk = ss_store_sk
    JOIN household_demographics ON hd_demo_sk = ss_hdemo_sk
    JOIN customer_address ON ca_address_sk = ss_addr_sk
    WHERE (hd_dep_count = 5 OR hd_vehicle_count = 2) AND d_dow IN (6, 0) AND d_year IN (1999, 2000, 2001)
        AND s_city IN ('Oak Grove', 'Centerville')
    GROUP BY ss_ticket_number, ss_customer_sk, ss_addr_sk, ca_city
) AS tickets
JOIN customer ON c_customer_sk = customer
JOIN customer_address AS home ON home.ca_address_sk = c_current_addr_sk AND home.ca_city <> bought_in
ORDER BY c_last_name, c_first_name, home.ca_city, bought_in, ticket, coupons, profit
LIMIT 100;
