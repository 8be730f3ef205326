-- Bidding statistics: bids, bidders and auctions of each day, by range of prices.
SELECT TRANSACTIONALLY
    CAST(date_time AS date) AS day,
    count(*) AS bids,
    count(*) FILTER (WHERE price < 10000) AS low_bids,
    count(*) FILTER (WHERE price >= 10000 AND price < 1000000) AS middle_bids,
    count(*) FILTER (WHERE price >= 1000000) AS high_bids,
    count(DISTINCT bidder) AS bidders,
    count(DISTINCT bidder) FILTER (WHERE price < 10000) AS low_bidders,
    count(DISTINCT bidder) FILTER (WHERE price >= 10000 AND price < 1000000) AS middle_bidders,
    count(DISTINCT bidder) FILTER (WHERE price >= 1000000) AS high_bidders,
    count(DISTINCT auction) AS auctions,
    count(DISTINCT auction) FILTER (WHERE price < 10000) AS low_auctions
FROM bid
GROUP BY CAST(date_time AS date);
