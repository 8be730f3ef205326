-- Mean, number and number of different list prices in six buckets of sales.
SELECT TRANSACTIONALLY *
FROM (
    SELECT avg(ss_list_price) AS mean_1, count(ss_list_price) AS number_1, count(DISTINCT ss_list_price) AS different_1
    FROM store_sales
    WHERE ss_quantity BETWEEN 0 AND 5
        AND (ss_list_price BETWEEN 11 AND 21 OR ss_coupon_amt BETWEEN 460 AND 1460 OR ss_wholesale_cost BETWEEN 14 AND 34)
) AS b1, (
    SELECT avg(ss_list_price) AS mean_2, count(ss_list_price) AS number_2, count(DISTINCT ss_list_price) AS different_2
    FROM store_sales
    WHERE ss_quantity BETWEEN 6 AND 10
        AND (ss_list_price BETWEEN 91 AND 101 OR ss_coupon_amt BETWEEN 1430 AND 2430 OR ss_wholesale_cost BETWEEN 32 AND 52)
) AS b2, (
    SELECT avg(ss_list_price) AS mean_3, count(ss_list_price) AS number_3, count(DISTINCT ss_list_price) AS different_3
    FROM store_sales
    WHERE ss_quantity BETWEEN 11 AND 15
        AND (ss_list_price BETWEEN 66 AND 76 OR ss_coupon_amt BETWEEN 920 AND 1920 OR ss_wholesale_cost BETWEEN 4 AND 24)
) AS b3, (
    SELECT avg(ss_list_price) AS mean_4, count(ss_list_price) AS number_4, count(DISTINCT ss_list_price) AS different_4
    FROM store_sales
    WHERE ss_quantity BETWEEN 16 AND 20
        AND (ss_list_price BETWEEN 142 AND 152 OR ss_coupon_amt BETWEEN 3054 AND 4054 OR ss_wholesale_cost BETWEEN 80 AND 100)
) AS b4, (
    SELECT avg(ss_list_price) AS mean_5, count(ss_list_price) AS number_5, count(DISTINCT ss_list_price) AS different_5
    FROM store_sales
    WHERE ss_quantity BETWEEN 21 AND 25
        AND (ss_list_price BETWEEN 135 AND 145 OR ss_coupon_amt BETWEEN 14180 AND 15180 OR ss_wholesale_cost BETWEEN 38 AND 58)
) AS b5, (
    SELECT avg(ss_list_price) AS mean_6, count(ss_list_price) AS number_6, count(DISTINCT ss_list_price) AS different_6
    FROM store_sales
    WHERE ss_quantity BETWEEN 26 AND 30
        AND (ss_list_price BETWEEN 28 AND 38 OR ss_coupon_amt BETWEEN 2513 AND 3513 OR ss_wholesale_cost BETWEEN 42 AND 62)
) AS b6
LIMIT 100;
