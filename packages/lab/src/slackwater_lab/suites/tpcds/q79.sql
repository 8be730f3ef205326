-- Tickets of large households on a Monday in stores of some size, with coupons and profit.
SELECT TRANSACTIONALLY c_last_name, c_first_name, substring(city FROM 1 FOR 30) AS city, ticket, coupons, profit
FROM (
    SELECT ss_ticket_number AS ticket, ss_customer_sk AS customer, s_city AS city, sum(ss_coupon_amt) AS coupons,
        sum(ss_net_profit) AS profit
    FROM store_sales
    JOIN date_dim ON d_date_sk = ss_sold_date_sk
    JOIN store ON s_store_sk = ss_store_sk
    JOIN household_demographics ON hd_demo_sk = ss_hdemo_sk
    WHERE (hd_dep_count = 8 OR hd_vehicle_count > 1) AND d_dow = 1 AND d_year IN (1999, 2000, 2001)
        AND s_number_employees BETWEEN 210 AND 290
    GROUP BY ss_ticket_number, ss_customer_sk, ss_addr_sk, s_city
) AS tickets
JOIN customer ON c_customer_sk = customer
ORDER BY c_last_name, c_first_name, substring(city FROM 1 FOR 30), profit, ticket, coupons
LIMIT 100;
