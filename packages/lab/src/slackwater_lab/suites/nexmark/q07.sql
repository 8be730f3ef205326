-- Highest bid of each ten seconds.
SELECT TRANSACTIONALLY b.auction, b.price, b.bidder, b.date_time
FROM bid AS b
JOIN (
    SELECT max(price) AS price, date_trunc('minute', date_time) AS minute, floor(extract(second FROM date_time) / 10) AS part
    FROM bid
    GROUP BY date_trunc('minute', date_time), floor(extract(second FROM date_time) / 10)
) AS m
    ON m.price = b.price AND m.minute = date_trunc('minute', b.date_time)
    AND m.part = floor(extract(second FROM b.date_time) / 10);
