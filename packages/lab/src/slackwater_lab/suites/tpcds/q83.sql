-- Items that came back in all three channels in the weeks of three days.
WITH days AS (
    SELECT d_date AS day
    FROM date_dim
    WHERE d_week_seq IN (
        SELECT d_week_seq FROM date_dim WHERE d_date IN (DATE '2001-03-04', DATE '2001-05-12', DATE '2001-11-20')
    )
), sr AS (
    SELECT i_item_id AS id, sum(sr_return_quantity) AS pieces
    FROM store_returns JOIN item ON i_item_sk = sr_item_sk JOIN date_dim ON d_date_sk = sr_returned_date_sk
    WHERE d_date IN (SELECT day FROM days)
    GROUP BY i_item_id
), cr AS (
    SELECT i_item_id AS id, sum(cr_return_quantity) AS pieces
    FROM catalog_returns JOIN item ON i_item_sk = cr_item_sk JOIN date_dim ON d_date_sk = cr_returned_date_sk
    WHERE d_date IN (SELECT day FROM days)
    GROUP BY i_item_id
), wr AS (
    SELECT i_item_id AS id, sum(wr_return_quantity) AS pieces
    FROM web_returns JOIN item ON i_item_sk = wr_item_sk JOIN date_dim ON d_date_sk = wr_returned_date_sk
    WHERE d_date IN (SELECT day FROM days)
    GROUP BY i_item_id
)
SELECT TRANSACTIONALLY
    sr.id, sr.pieces AS store_pieces, sr.pieces * 1.0 / (sr.pieces + cr.pieces + wr.pieces) / 3.0 * 100 AS store_share,
    cr.pieces AS catalog_pieces, cr.pieces * 1.0 / (sr.pieces + cr.pieces + wr.pieces) / 3.0 * 100 AS catalog_share,
    wr.pieces AS web_pieces, wr.pieces * 1.0 / (sr.pieces + cr.pieces + wr.pieces) / 3.0 * 100 AS web_share,
    (sr.pieces + cr.pieces + wr.pieces) / 3.0 AS mean
FROM sr
JOIN cr ON cr.id = sr.id
JOIN wr ON wr.id = sr.id
ORDER BY sr.id, store_pieces
LIMIT 2;
