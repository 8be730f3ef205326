-- Top bids: the ten highest bids of each auction, with their place.
SELECT TRANSACTIONALLY *
FROM (
    SELECT *, row_number() OVER (PARTITION BY auction ORDER BY price DESC, bid_id) AS place
    FROM bid
) AS ranked
WHERE place <= 10;
