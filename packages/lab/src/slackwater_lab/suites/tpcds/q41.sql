-- Products of manufacturers who make things in some combinations of colours, units and sizes.
SELECT TRANSACTIONALLY DISTINCT i1.i_product_name
FROM item AS i1
WHERE i1.i_manufact_id BETWEEN 700 AND 740
    AND (
        SELECT count(*)
        FROM item AS i2
        WHERE (
                i2.i_manufact = i1.i_manufact
                AND (
                    (i2.i_category = 'Women' AND i2.i_color IN ('navy', 'pink') AND i2.i_units IN ('Oz', 'Case')
                        AND i2.i_size IN ('small', 'N/A'))
                    OR (i2.i_category = 'Men' AND i2.i_color IN ('tan', 'rose') AND i2.i_units IN ('Gram', 'Each')
                        AND i2.i_size IN ('large', 'petite'))
                )
            )
            OR (
                i2.i_manufact = i1.i_manufact
                AND (
                    (i2.i_category = 'Women' AND i2.i_color IN ('sky', 'moccasin') AND i2.i_units IN ('Pound', 'Box')
                        AND i2.i_size IN ('small', 'medium'))
                    OR (i2.i_category = 'Men' AND i2.i_color IN ('plum', 'steel') AND i2.i_units IN ('Dozen', 'Ton')
                        AND i2.i_size IN ('extra large', 'large'))
                )
            )
    ) > 0
ORDER BY i1.i_product_name
LIMIT 2;
