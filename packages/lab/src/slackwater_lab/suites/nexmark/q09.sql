-- Winning bids: the highest bid of each auction, the first one if there are several.
SELECT TRANSACTIONALLY id, item_name, seller, category, auction, bidder, price, bid_time
FROM (
    SELECT a.id, a.item_name, a.seller, a.category, b.auction, b.bidder, b.price, b.date_time AS bid_time,
        row_number() OVER (PARTITION BY a.id ORDER BY b.price DESC, b.date_time ASC, b.bid_id) AS place
    FROM auction AS a
    JOIN bid AS b ON b.auction = a.id AND b.date_time BETWEEN a.date_time AND a.expires
) AS ranked
WHERE place = 1;
