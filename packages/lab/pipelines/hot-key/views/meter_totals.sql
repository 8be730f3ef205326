-- Each meter beside what its readings say.
SELECT TRANSACTIONALLY
    m.id,
    m.name,
    m.readings,
    m.consumed,
    count(r.id) AS counted,
    coalesce(sum(r.amount), 0) AS summed
FROM metering.meters m
LEFT JOIN metering.readings r ON r.meter_id = m.id
GROUP BY m.id
