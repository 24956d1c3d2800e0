-- Rules and their limits: what their columns mean, the functions that change them, and how commands show
-- them. rate_limit_fault converts the name of a constraint to an error: the column, the value, and the rest
-- of the name with spaces.

-- TABLE rate_limit_rules: Rules that limit, block or exempt requests. A rule matches a request if all its
-- conditions hold. A condition that is NULL always holds.
--   name: The name.
--   family: Within a family, only the matching rule with the highest priority applies. NULL: no family.
--   priority: The order of rules, highest first.
--   mode: enforce; shadow: the rule counts and reports but refuses nothing; off: the rule is ignored.
--   action: limit: the limits of the rule apply; block: requests are refused; exempt: no limits of rules
--     apply to requests.
--   hosts: Host names without a port. *.example.com matches every name below example.com.
--   paths: Paths that start with a slash. * matches one segment; a final * matches the rest: /api/* matches
--     /api/a/b.
--   methods: Methods, such as GET.
--   networks: Networks that contain the client's address. An unknown address is in none, except that for
--     limit and block it is in {0.0.0.0/0,::/0}.
--   tiers: The user's tier must be one of these.
--   count_by: What each counter counts: a combination of user, key, tier, ip, ip/128, host, route and
--     header:NAME. ip: an IPv4 address, or the /64 network of an IPv6 address; ip/128: each IPv6 address.
--     Alternatives such as user|ip use the first that the request has. all: one counter for all requests.
--   without_header: For header:NAME in count_by. share: all requests with a missing or empty header share one
--     counter; skip: the rule does not match them; refuse: they are refused with 401. With share and refuse,
--     a CORS preflight without the header counts by its client.
--   valid: When the rule applies.
--   cost: The units that a request charges to each limit of requests.
--   settle: How to read the actual cost from the response: header X-Tokens, bytes, json usage.total_tokens,
--     or status 401 403 = 1, else 0. NULL: the actual cost is cost.
--   status: The HTTP status of a refusal, from 400 to 599. NULL: 429 for limits, 403 for a block.
--   message: The text of a refusal. NULL: the proxy's text.
--   retry_after: The Retry-After of a refusal. NULL: for limits, the time until the request would pass; for a
--     block, none.
--   comment: A note. Proxies ignore it.
--   created_at: When the row was created.
--   created_by: The role that created the row.
--   updated_at: When the row was last changed. Changes of its limits are in rate_limit_changes only.
--   counted_as: The first name of a renamed rule, by which the rule counts, so that it keeps its counters. A
--     new rule with a name by which another rule counts gets another one here. NULL: the rule counts by its
--     name.

-- The conditions of a rule besides its tiers and times.
CREATE OR REPLACE FUNCTION rate_limit_conditions(r rate_limit_rules) RETURNS jsonb LANGUAGE sql STABLE
RETURN jsonb_strip_nulls(jsonb_build_object('hosts', r.hosts, 'paths', r.paths, 'methods', r.methods,
	'networks', r.networks));

-- rate_limit_rule creates or changes a rule and its limits in one call. An argument that is NULL keeps the
-- value of an existing rule. If NULL removed the value, a call that leaves out a condition would make the
-- rule match more requests. reset names arguments to set to their defaults, and limits to delete.
--
-- Constraints and triggers check most values. This function checks what they do not: unknown names in tiers,
-- amounts out of range, and arguments such as burst that apply to none of the rule's limits.

-- Creates or changes a rule with its limits. limits are limits with any window, as in short=50/10s or
-- tpm=5000 tokens/1m, or short= to delete one. reset also deletes limits by their names. Returns created or
-- changed.
CREATE OR REPLACE FUNCTION rate_limit_rule(
	name text,
	family text DEFAULT NULL, priority bigint DEFAULT NULL, mode text DEFAULT NULL, action text DEFAULT NULL,
	tiers text[] DEFAULT NULL, hosts text[] DEFAULT NULL, paths text[] DEFAULT NULL,
		methods text[] DEFAULT NULL, networks cidr[] DEFAULT NULL,
	count_by text[] DEFAULT NULL, algorithm text DEFAULT NULL,
	per_second bigint DEFAULT NULL, per_minute bigint DEFAULT NULL, per_hour bigint DEFAULT NULL,
		per_day bigint DEFAULT NULL, per_month bigint DEFAULT NULL,
	burst bigint DEFAULT NULL, durable boolean DEFAULT NULL, on_exceed text DEFAULT NULL,
	valid tstzrange DEFAULT NULL, cost bigint DEFAULT NULL, status int DEFAULT NULL,
		message text DEFAULT NULL, retry_after interval DEFAULT NULL,
	comment text DEFAULT NULL,
	without_header text DEFAULT NULL, settle text DEFAULT NULL, in_flight bigint DEFAULT NULL,
	limits text[] DEFAULT NULL, reset text[] DEFAULT NULL, notify bigint[] DEFAULT NULL
) RETURNS text LANGUAGE plpgsql AS $$
#variable_conflict use_variable
DECLARE
	windows CONSTANT jsonb := '{"per_second": "1s", "per_minute": "1m", "per_hour": "1h", "per_day": "24h",
		"per_month": "1mo calendar", "in_flight": "in_flight"}';
	amounts CONSTANT jsonb := (SELECT jsonb_strip_nulls(to_jsonb(a))
		FROM (SELECT per_second, per_minute, per_hour, per_day, per_month, in_flight) AS a);
	resets CONSTANT text[] := coalesce(reset, '{}');
	limit_names CONSTANT text[] := ARRAY(SELECT jsonb_object_keys(windows))
		|| '{burst,durable,on_exceed,notify}';
	result text;
BEGIN
	PERFORM rate_limit_refuse('tiers: ' || string_agg(quote_literal(t), ', ') || ': must be in '
			'rate_limit_tiers, which has ' || (SELECT coalesce(string_agg(quote_literal(k.tier), ', '
				ORDER BY k.rank, k.tier), 'none') FROM rate_limit_tiers k))
		FROM unnest(tiers) AS t WHERE t NOT IN (SELECT k.tier FROM rate_limit_tiers k);
	PERFORM rate_limit_refuse(string_agg(a.key || ': ' || a.value, ', ')
			|| ': must be null or 0 to 9007199254740992')
		FROM jsonb_each_text(amounts) AS a WHERE a.value::bigint NOT BETWEEN 0 AND 9007199254740992;
	result := rate_limit_set('rate_limit_rules', '{name}', (SELECT jsonb_object_agg(f, NULL)
		FROM unnest(limit_names) AS f) || (SELECT to_jsonb(r) FROM (SELECT name, family, priority, mode,
			action, tiers, hosts, paths, methods, networks, count_by, valid, cost, status, message,
			retry_after, comment, without_header, settle) AS r),
		ARRAY(SELECT n FROM unnest(resets) AS n WHERE n <> ALL (limit_names) OR n IS NULL));
	-- Each element of limits creates or changes a limit, or deletes the limit if the element ends in =. An
	-- amount such as per_day creates the limit of that name if the rule does not have it.
	PERFORM CASE WHEN f.l ~ '^[^=]+=$' THEN rate_limit_delete_limit(name, rtrim(f.l, '='))::text
		ELSE rate_limit_limit(name, split_part(f.l, '=', 1), coalesce(substring(f.l FROM '=(.*)$'), ''),
			algorithm, CASE WHEN f.l !~ '=.*(calendar|in_flight)' THEN burst END, durable,
			CASE WHEN f.l !~ '=.*in_flight' THEN on_exceed END) END
		FROM (SELECT unnest(limits) UNION ALL
			SELECT concat(a.key, '=', a.value, '/', windows ->> a.key) FROM jsonb_each_text(amounts) AS a
			WHERE a.key NOT IN (SELECT l.name FROM rate_limit_rule_limits l WHERE l.rule = name)) AS f(l);
	-- Then set durable on all limits, algorithm and burst on limits with a window (neither a calendar nor
	-- in_flight), on_exceed on all limits except in_flight, and notify on those with a fixed window.
	PERFORM rate_limit_set('rate_limit_rule_limits', '{rule,name}', jsonb_build_object('rule', name, 'name',
			l.name, 'events', rate_limit_units(amounts ->> l.name, l.unit), 'durable', durable,
			'algorithm', CASE WHEN l.per IS NOT NULL THEN algorithm END,
			'burst', CASE WHEN l.per IS NOT NULL THEN burst END,
			'on_exceed', CASE WHEN l.algorithm <> 'in_flight' THEN on_exceed END,
			'notify', CASE WHEN coalesce(algorithm, l.algorithm) = 'fixed_window' THEN notify END),
			ARRAY(SELECT n FROM unnest(resets) AS n WHERE n IN ('burst', 'durable', 'on_exceed', 'notify')))
		FROM rate_limit_rule_limits l WHERE l.rule = name AND (amounts ? l.name
			OR resets && '{burst,durable,on_exceed,notify}'
			OR num_nonnulls(algorithm, burst, durable, on_exceed, notify) > 0);
	DELETE FROM rate_limit_rule_limits l WHERE l.rule = name AND l.name = ANY (resets) AND windows ? l.name
		AND NOT amounts ? l.name;
	PERFORM rate_limit_complete(name); -- now, and not at the end of the transaction
	PERFORM rate_limit_refuse(format('%s: %s: the rule has no limit%s', g.field, g.value, g.place))
		FROM (VALUES ('algorithm', to_json(algorithm), ' with a window'),
			('burst', to_json(burst), ' with a window'),
			('on_exceed', to_json(on_exceed), ' with a window or a calendar'),
			('notify', to_json(notify), ' with a fixed window or a calendar'),
			('durable', CASE WHEN durable THEN to_json(durable) END, '')) AS g(field, value, place)
		WHERE NOT EXISTS (SELECT FROM rate_limit_rule_limits l
			WHERE l.rule = name AND to_jsonb(l) -> g.field = g.value::jsonb) AND g.value IS NOT NULL;
	RETURN result;
END $$;

-- TABLE rate_limit_rule_limits: The limits of rules. A request passes only if all limits of its rules admit
-- it.
--   rule: The name of the rule.
--   name: The name of the limit, unique within the rule, such as per_hour. The prefix of the counters is
--     rule/, the rule's counted_as or name, a slash, and the limit's counted_as or name.
--   algorithm: sliding_window, fixed_window, token_bucket, sliding_log, gcra or in_flight.
--   events: The quota per window, in millionths for money. For in_flight: the number of concurrent requests.
--     0: nothing passes. NULL: the limit applies only where an override has an amount.
--   per: The length of the window. A day is 24 hours. NULL with calendar, and for in_flight.
--   calendar: In place of per: day, week, month or year of the calendar. For users with a period_start,
--     months and years start on that day.
--   time_zone: The IANA name of the calendar's time zone, as for users. NULL: UTC. Users with a period_start
--     use their own time zone.
--   burst: The capacity of a token_bucket, or the largest burst that gcra allows. NULL: events. A
--     token_bucket with a burst below events refills evenly.
--   durable: true: the counts survive a crash of the server. NULL: true with a unit of tokens, else false.
--   on_exceed: refuse; overage: requests beyond the quota pass, are counted, and have a mark in their
--     responses.
--   unit: What is counted: requests, or tokens of language models, which responses report: tokens,
--     input_tokens (from a cache or not), or output_tokens; or money, by the prices of rate_limit_prices.
--   output: The tokens of output that a request holds until its response has ended if it names no maximum,
--     with a unit of tokens or money. NULL: 4096.
--   batches: refuse: with a unit of tokens or money, requests for batches are refused, because their answers
--     come later; pass: they pass, and cost nothing.
--   fields: false: neither fields of responses nor bodies say what is left.
--   notify: Percentages of the quota. A counter that reaches one in a window gets a row in
--     rate_limit_notices.
--   counted_as: The name by which the limit counts since its unit changed, so that no unit has the counts of
--     another. NULL: the limit counts by its name.

-- Creates or changes a limit of a rule, with any window. The amount is as in 50/10s, 5000 tokens/1m, 50
-- money/1mo calendar, unlimited/1h, 10000/1mo calendar Europe/Berlin or 5/in_flight. It sets the unit, the
-- window, the calendar and the time zone, too.
CREATE OR REPLACE FUNCTION rate_limit_limit(rule text, name text, amount text DEFAULT NULL,
	algorithm text DEFAULT NULL, burst bigint DEFAULT NULL, durable boolean DEFAULT NULL,
	on_exceed text DEFAULT NULL, output bigint DEFAULT NULL, fields boolean DEFAULT NULL,
	reset text[] DEFAULT NULL, notify bigint[] DEFAULT NULL, batches text DEFAULT NULL)
	RETURNS text LANGUAGE plpgsql AS $$
DECLARE
	-- the events, the unit, in_flight, the calendar, the time zone, the window
	part CONSTANT text[] := regexp_match($3, '^\s*(unlimited|\d{1,18}|\d+[.]\d+)(?:\s+([a-z_]+))?\s*/\s*'
		|| '(?:(in_flight)|1?(day|d|week|w|month|mo|year|y) calendar(?: (\S+))?'
		|| '|((?:\d{0,8}(?:w|d|h|m|s|ms|us))+))\s*$');
	old rate_limit_rule_limits;
	law text;
	kind text;
BEGIN
	IF $3 IS NOT NULL AND part IS NULL THEN
		RAISE EXCEPTION 'amount of %/%: %: must be %', $1, $2, to_json($3),
			CASE WHEN $3 ~ '/\s*\d*\s*(mo|months?|y|years?)\s*$'
				THEN 'with calendar, as in 5 money/1mo calendar: months and years differ in length'
			ELSE 'EVENTS/WINDOW, as in 100/10s, 5000 tokens/1m, 0.50 money/24h, unlimited/1h, '
				'10000/1mo calendar Europe/Berlin or 5/in_flight' END
			USING ERRCODE = 'invalid_parameter_value';
	END IF;
	SELECT l.* INTO old FROM rate_limit_rule_limits l WHERE (l.rule, l.name) = ($1, $2) FOR UPDATE;
	kind := coalesce(part[2], CASE WHEN part[1] <> 'unlimited' THEN 'requests' END, old.unit);
	-- A new limit gets the algorithm of the rule's limits with a window, if they all have the same algorithm.
	SELECT CASE WHEN part[3] IS NOT NULL THEN 'in_flight' WHEN part[4] IS NOT NULL THEN 'fixed_window'
		ELSE coalesce($4, CASE WHEN old.per IS NOT NULL THEN old.algorithm END, CASE
			WHEN part IS NOT NULL THEN
			coalesce((SELECT min(l.algorithm) FROM rate_limit_rule_limits l WHERE l.rule = $1
				AND l.per IS NOT NULL
				HAVING count(DISTINCT l.algorithm) = 1), 'sliding_window') END) END INTO law;
	RETURN rate_limit_set('rate_limit_rule_limits', '{rule,name}', jsonb_build_object('rule', $1, 'name', $2,
		'events', CASE WHEN part[1] <> 'unlimited'
			THEN rate_limit_units(part[1], kind) END,
		'calendar', CASE left(part[4], 1) WHEN 'd' THEN 'day'
			WHEN 'w' THEN 'week' WHEN 'm' THEN 'month' WHEN 'y' THEN 'year' END, 'time_zone', part[5],
		'per', regexp_replace(part[6], '^(?=[a-z])', '1')::interval, 'algorithm', law, 'burst', $5,
		'durable', $6, 'on_exceed', $7, 'unit', kind, 'output', $8, 'fields', $9, 'notify', $11,
		'batches', $12),
		$10 || CASE WHEN part IS NOT NULL
			THEN ARRAY(SELECT f FROM unnest(ARRAY['events', 'calendar', 'time_zone',
			'per', 'burst', 'output', 'batches'],
				ARRAY[nullif(part[1], 'unlimited'), part[4], part[5], part[6],
				coalesce($5::text, part[6]), coalesce($8::text, nullif(kind, 'requests')),
				coalesce($12, nullif(kind, 'requests'))]) AS n(f, v)
				WHERE v IS NULL
					AND f <> ALL (coalesce($10, '{}'))) END);
END $$;

-- Deletes a rule with its limits and overrides, and returns whether it existed.
CREATE OR REPLACE FUNCTION rate_limit_delete_rule(name text) RETURNS boolean LANGUAGE plpgsql AS $$
BEGIN
	DELETE FROM rate_limit_rules r WHERE r.name = $1;
	RETURN FOUND;
END $$;

-- Deletes a limit with its overrides, and returns whether it existed. A rule with the action limit must keep
-- at least one limit.
CREATE OR REPLACE FUNCTION rate_limit_delete_limit(rule text, name text) RETURNS boolean
	LANGUAGE plpgsql AS $$
BEGIN
	DELETE FROM rate_limit_rule_limits l WHERE l.rule = $1 AND l.name = $2;
	RETURN FOUND;
END $$;

-- The rules in the order in which proxies try them, with their limits as text. Defaults are NULL.
--   in_force: Whether the rule applies now.
--   limits: Each limit as text: its name, events and window, algorithm, and all values that are not defaults.
--   problems: The warnings of rate_limit_rule_warnings.
--
-- Proxies try rules in this order.
CREATE OR REPLACE VIEW rate_limit_rule_states WITH (security_invoker) AS
	SELECT r.name, r.action, r.family, r.priority, r.mode, r.mode <> 'off' AND r.valid @> now() AS in_force,
		r.tiers, r.hosts, r.paths, r.methods, r.networks, nullif(r.valid, '(,)') AS valid,
		CASE r.action WHEN 'limit' THEN r.count_by END AS count_by,
		nullif(r.without_header, 'share') AS without_header,
		(SELECT string_agg(concat_ws(' ', l.name,
			coalesce(rate_limit_readable(rate_limit_decimal(l.events, l.unit)), 'unlimited')
			|| coalesce(' ' || nullif(l.unit, 'requests'), '')
			|| coalesce('/' || coalesce(rate_limit_span(l.per), l.calendar), ''), l.algorithm, l.time_zone,
			'burst ' || l.burst, CASE WHEN l.durable AND l.unit = 'requests' THEN 'durable'
				WHEN NOT l.durable AND l.unit <> 'requests' THEN 'durable off' END,
			nullif(l.on_exceed, 'refuse'),
			'output ' || l.output, 'batches ' || nullif(l.batches, 'refuse'),
			'notify ' || array_to_string(l.notify, ','),
			CASE WHEN NOT l.fields THEN 'fields off' END), '; '
			ORDER BY l.per NULLS LAST, l.name) FROM rate_limit_rule_limits l WHERE l.rule = r.name) AS limits,
		nullif(r.cost, 1) AS cost, r.settle, r.status, r.message, r.retry_after, r.comment,
		(SELECT array_agg(w.warning ORDER BY w.warning) FROM rate_limit_rule_warnings w WHERE w.rule = r.name)
			AS problems, r.counted_as
	FROM rate_limit_rules r
	ORDER BY CASE r.action WHEN 'exempt' THEN 1 WHEN 'block' THEN 2 ELSE 3 END, r.priority DESC, r.name;
