-- Customers who bought on the first days of a month in a city where they do not live, with prices and taxes.
SELECT TRANSACTIONALLY c_last_name, c_first_name, home.ca_city, bought_in, ticket, price, tax, list_price
FROM (
    SELECT ss_ticket_number AS ticket, ss_customer_sk AS customer, ca_city AS bought_in, sum(ss_ext_sales_price) AS price,
        sum(ss_ext_list_price) AS list_price, sum(ss_ext_tax) AS tax
    FROM store_sales
    JOIN date_dim ON d_date_sk = ss_sold_date_sk
    JOIN store ON s_store_sk = ss_store_sk
    JOIN household_demographics ON hd_demo_sk = ss_hdemo_sk
    JOIN customer_address ON ca_address_sk = ss_addr_sk
    WHERE d_dom BETWEEN 1 AND 2 AND (hd_dep_count = 3 OR hd_vehicle_count = 4) AND d_year IN (1999, 2000, 2001)
        AND s_city IN ('Pleasant Hill', 'Five Points')
    GROUP BY ss_ticket_number, ss_customer_sk, ss_addr_sk, ca_city
) AS tickets
JOIN customer ON c_customer_sk = customer
JOIN customer_address AS home ON home.ca_address_sk = c_current_addr_sk
WHERE home.ca_city <> bought_in
ORDER BY c_last_name, ticket, c_first_name, bought_in, price
LIMIT 100;
