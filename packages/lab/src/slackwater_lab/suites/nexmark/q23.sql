-- Bids with who bids, and the auctions that the bidder opened.
SELECT TRANSACTIONALLY
    b.bid_id, b.bidder, b.price, b.channel, p.name, p.city, p.state, a.id AS auction, a.item_name, a.expires, a.category
FROM bid AS b
JOIN person AS p ON p.id = b.bidder
JOIN auction AS a ON a.seller = b.bidder;
