-- Customers with tickets of some size at the beginning or end of a month, of households with cars.
SELECT TRANSACTIONALLY c_last_name, c_first_name, c_salutation, c_preferred_cust_flag, ticket, lines
FROM (
    SELECT ss_ticket_number AS ticket, ss_customer_sk AS customer, count(*) AS lines
    FROM store_sales
    JOIN date_dim ON d_date_sk = ss_sold_date_sk
    JOIN store ON s_store_sk = ss_store_sk
    JOIN household_demographics ON hd_demo_sk = ss_hdemo_sk
    WHERE (d_dom BETWEEN 1 AND 3 OR d_dom BETWEEN 25 AND 28) AND hd_buy_potential IN ('>10000', '0-500')
        AND hd_vehicle_count > 0 AND CASE WHEN hd_vehicle_count > 0 THEN hd_dep_count * 1.0 / hd_vehicle_count END > 1.2
        AND d_year IN (1999, 2000, 2001) AND s_county = 'Walker County'
    GROUP BY ss_ticket_number, ss_customer_sk
) AS tickets
JOIN customer ON c_customer_sk = customer
WHERE lines BETWEEN 1 AND 3
ORDER BY c_last_name, c_first_name, c_salutation, c_preferred_cust_flag DESC NULLS LAST, ticket;
