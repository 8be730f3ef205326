INSERT INTO inventory.orders VALUES (1, 'ada', 'new', 1, 1.50, '2026-01-02 03:04:05Z');
INSERT INTO inventory.order_lines VALUES (11, 1, 'pen', 1, 1.50);
COMMIT;
INSERT INTO inventory.orders VALUES (2, 'bob', 'new', 0, 0.00, '2026-01-02 03:04:05Z');
