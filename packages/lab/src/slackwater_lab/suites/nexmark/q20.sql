-- Expanding bids: with the auctions of a category.
SELECT TRANSACTIONALLY
    b.auction, b.bidder, b.price, b.channel, b.url, b.date_time AS bid_time, b.extra AS bid_extra, a.item_name, a.description,
    a.initial_bid, a.reserve, a.date_time AS auction_time, a.expires, a.seller, a.category, a.extra AS auction_extra
FROM bid AS b
JOIN auction AS a ON a.id = b.auction
WHERE a.category = 10;
