-- Last bid: the newest bid of each bidder on each auction.
SELECT TRANSACTIONALLY auction, bidder, price, channel, url, date_time, extra
FROM (
    SELECT *, row_number() OVER (PARTITION BY bidder, auction ORDER BY date_time DESC, bid_id DESC) AS place
    FROM bid
) AS ranked
WHERE place <= 1;
