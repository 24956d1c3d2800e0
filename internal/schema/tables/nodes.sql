-- The registry of the proxies.

-- TABLE rate_limit_nodes: The proxies that count here. A proxy renews its row every 3 seconds. The row of a
-- proxy that has ended or is silent is deleted after a day. A crash of the server empties the table, and
-- running proxies then write their rows again.
--   node: The name of the proxy, the same after each start. Several proxies may have the same name.
--   epoch: A number of the process, which is new after each start.
--   seen: When the proxy renewed this row. The proxy is silent 10 seconds later.
--   ended: When the proxy stopped in order. NULL: the proxy runs, or was killed.
--   system: The system identifier of the server that the proxy wrote to. A row with another identifier is
--     from a restored copy and has no meaning here.
--   report: The proxy's report about itself, which rate_limit_proxies has as columns. Times in the report are
--     microseconds by the proxy's clock, and clock is the time of that clock at seen.
--   role: The role that wrote the row. Other proxies cannot change the row.

-- Renews the row of a proxy in rate_limit_nodes, or ends it if report is NULL. Deletes the rows of the
-- calling role for earlier processes with that name, unless they have lost settlements, and the rows that
-- were silent for a day.
CREATE OR REPLACE FUNCTION rate_limit_heartbeat(node text, epoch bigint, report json) RETURNS void
	LANGUAGE plpgsql SECURITY DEFINER AS $$
DECLARE
	caller CONSTANT text := rate_limit_caller();
BEGIN
	IF $3 IS NULL THEN
		UPDATE rate_limit_nodes n SET ended = now() WHERE (n.node, n.epoch, n.role) = ($1, $2, caller);
		RETURN;
	END IF;
	DELETE FROM rate_limit_nodes n WHERE n.seen < now() - interval '1 day' OR (n.node, n.role) = ($1, caller)
		AND n.epoch <> $2 AND NOT {node_is_live}
		AND n.report->>'lost' IS NULL;
	INSERT INTO rate_limit_nodes AS n (node, epoch, report, role) VALUES ($1, $2, $3, caller)
	ON CONFLICT ON CONSTRAINT rate_limit_nodes_pkey DO UPDATE SET seen = now(), ended = NULL,
		system = excluded.system, report = excluded.report;
END $$;

-- The number of running proxies.
CREATE OR REPLACE FUNCTION rate_limit_live_proxies() RETURNS bigint LANGUAGE sql STABLE SECURITY DEFINER
AS $$
	SELECT count(*) FROM rate_limit_nodes n WHERE {node_is_live}
$$;
