-- Average price of a category: over the highest bids of its auctions.
SELECT TRANSACTIONALLY category, avg(final) AS mean
FROM (
    SELECT a.id, a.category, max(b.price) AS final
    FROM auction AS a
    JOIN bid AS b ON b.auction = a.id AND b.date_time BETWEEN a.date_time AND a.expires
    GROUP BY a.id, a.category
) AS won
GROUP BY category;
