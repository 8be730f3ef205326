-- Each warehouse with its districts.
SELECT TRANSACTIONALLY
    w.id,
    w.name,
    w.ytd,
    coalesce(sum(d.ytd), 0) AS district_ytd,
    list({'id': d.id, 'name': d.name, 'ytd': d.ytd, 'next_order': d.next_order} ORDER BY d.id) AS districts
FROM tpcc.warehouse w
JOIN tpcc.district d ON d.warehouse_id = w.id
GROUP BY w.id
