-- The tables of rules and their limits. The constraints on limits agree with ratelimit.Limit.Validate. The
-- constraints on paths, hosts and count_by refuse values that proxies cannot use. rate_limit_fault converts
-- the name of a constraint to an error: the column, the value, and the rest of the name with spaces.

CREATE TABLE IF NOT EXISTS rate_limit_rules (
	name        text PRIMARY KEY,
	family      text,
	priority    bigint NOT NULL DEFAULT 100,
	mode        text NOT NULL DEFAULT 'enforce',
	action      text NOT NULL DEFAULT 'limit',
	hosts       text[],
	paths       text[],
	methods     text[],
	networks    cidr[],
	tiers       text[],
	count_by    text[] NOT NULL DEFAULT '{user}',
	without_header text NOT NULL DEFAULT 'share',
	valid       tstzrange NOT NULL DEFAULT '(,)',
	cost        bigint NOT NULL DEFAULT 1,
	settle      text,
	status      bigint,
	message     text,
	retry_after interval,
	comment     text,
	created_at  timestamptz NOT NULL DEFAULT now(),
	created_by  text NOT NULL DEFAULT session_user,
	updated_at  timestamptz NOT NULL DEFAULT now(),
	CONSTRAINT rate_limit_rules_of_a_family_must_have_different_priorities UNIQUE (family,
		priority) DEFERRABLE,
	CONSTRAINT name_must_be_1_to_100_letters_digits_or_dots_dashes_underscores
		CHECK (name ~ '^[A-Za-z0-9._-]{1,100}$'),
	CONSTRAINT family_must_be_null_or_a_name_like_that_of_a_rule CHECK (family ~ '^[A-Za-z0-9._-]{1,100}$'),
	CONSTRAINT mode_must_be_enforce_or_shadow_or_off CHECK (mode IN ('enforce', 'shadow', 'off')),
	CONSTRAINT action_must_be_limit_or_block_or_exempt CHECK (action IN ('limit', 'block', 'exempt')),
	CONSTRAINT hosts_must_be_null_or_names_without_ports_as_in_example_com
		CHECK (rate_limit_each_matches(hosts, '^((\*\.)?[A-Za-z0-9_-]+(\.[A-Za-z0-9_-]+)*|'
			'(?=.*:.*:)([0-9A-Fa-f:.]+|\[[0-9A-Fa-f:.]+\]))$')),
	CONSTRAINT paths_must_be_null_or_begin_with_slash_and_have_whole_wildcards
		CHECK (rate_limit_each_matches(paths, '^(/(\*|[^/*[:cntrl:]]*))+$')),
	CONSTRAINT paths_must_not_have_empty_or_dot_segments_or_escapes_or_queries
		CHECK (rate_limit_each_matches(paths,
			'^(/|(/(?!\.{1,2}(/|$))([^/?\\%]|%(?![0-9A-Fa-f]{2}))+)+/?)$')),
	CONSTRAINT methods_must_be_null_or_names_such_as_get
		CHECK (rate_limit_each_matches(methods, '^[A-Za-z][A-Za-z-]{0,31}$')),
	CONSTRAINT networks_must_be_null_or_a_list_without_nulls
		CHECK (cardinality(networks) > 0 AND array_ndims(networks) = 1 AND num_nulls(VARIADIC networks) = 0),
	CONSTRAINT tiers_must_be_null_or_names_of_tiers
		CHECK (rate_limit_each_matches(tiers, '^[^/[:space:][:cntrl:]]{1,100}$')),
	CONSTRAINT count_by_all_must_stand_alone
		CHECK (cardinality(count_by) = 1 OR 'all' <> ALL (count_by)),
	CONSTRAINT count_by_must_have_each_name_once CHECK (rate_limit_each_once(count_by)),
	CONSTRAINT valid_must_not_be_empty CHECK (NOT isempty(valid)),
	CONSTRAINT cost_must_be_1_to_9007199254740992 CHECK (cost BETWEEN 1 AND 9007199254740992),
	CONSTRAINT settle_must_be_header_or_bytes_or_json_or_status CHECK (settle ~
		'^(bytes|header [A-Za-z0-9!#$%&''*+.^_|~-]+|json '
		'[^[:space:][:cntrl:].]+(\.[^[:space:][:cntrl:].]+)*|status [1-5][0-9]{2}( [1-5][0-9]{2})* = '
		'[0-9]{1,15}, else [0-9]{1,15})$'),
	CONSTRAINT status_must_be_400_to_599 CHECK (status BETWEEN 400 AND 599),
	CONSTRAINT message_must_have_at_most_4096_bytes CHECK (octet_length(message) <= 4096),
	CONSTRAINT retry_after_must_be_0_to_36525_days_without_months CHECK (
		date_trunc('month', retry_after) = '0' AND retry_after BETWEEN interval '0' AND interval '36525 days')
);
-- Before version 3, ip was one address, and ip/64 the network that is one client. Now ip is the client.
DO $$ BEGIN
	IF NOT EXISTS (SELECT FROM pg_constraint WHERE conrelid = 'rate_limit_rules'::regclass
			AND conname = 'without_header_must_be_share_or_skip_or_refuse') THEN
		ALTER TABLE rate_limit_rules
			DROP CONSTRAINT IF EXISTS count_by_must_be_of_user_key_tier_ip_host_route_header_or_all,
			DROP CONSTRAINT IF EXISTS without_header_must_be_share_or_skip;
		UPDATE rate_limit_rules SET count_by = ARRAY(
				SELECT replace(regexp_replace(n, '(^|\|)ip(?=\||$)', '\1ip/128'), 'ip/64', 'ip')
				FROM unnest(count_by) WITH ORDINALITY AS u(n, place) ORDER BY place)
			WHERE '|' || array_to_string(count_by, '|') || '|' LIKE '%|ip/64|%';
		ALTER TABLE rate_limit_rules
			ADD CONSTRAINT count_by_must_be_of_user_key_tier_ip_host_route_header_or_all
			CHECK (rate_limit_each_matches(count_by, '^(all|((user|key|tier|ip|ip/128|host|route|'
				'header:[A-Za-z0-9!#$%&''*+.^_~-]+)(\|(?!$)|$))+)$')),
			ADD CONSTRAINT without_header_must_be_share_or_skip_or_refuse
				CHECK (without_header IN ('share', 'skip', 'refuse'));
	END IF;
END $$;
DO $$ BEGIN
	IF NOT EXISTS (SELECT FROM pg_attribute a WHERE a.attrelid = 'rate_limit_rules'::regclass
		AND a.attname = 'counted_as' AND NOT a.attisdropped) THEN
		ALTER TABLE rate_limit_rules ADD COLUMN counted_as text
			CONSTRAINT counted_as_must_be_1_to_120_letters_digits_or_dots_dashes
				CHECK (counted_as ~ '^[A-Za-z0-9._-]{1,120}$'),
			ADD CONSTRAINT rate_limit_rules_must_count_by_different_names
				EXCLUDE USING btree ((coalesce(counted_as, name)) WITH =) DEFERRABLE;
	END IF;
	-- The names are as in internal/core/option. NOT VALID keeps rules of older versions, which proxies
	-- report.
	IF NOT EXISTS (SELECT FROM pg_constraint c WHERE c.conrelid = 'rate_limit_rules'::regclass
		AND c.conname LIKE 'settle\_must\_take%') THEN
		ALTER TABLE rate_limit_rules
			ADD CONSTRAINT settle_must_take_a_header_of_its_own_that_clients_do_not_need
			CHECK (settle !~* ('^header (grpc-.*|content-.*|access-control-.*|sec-.*|proxy-.*|set-cookie|'
				'trailer|transfer-encoding|connection|keep-alive|upgrade|te|date|location|vary|etag|'
				'last-modified|cache-control|expires|age|pragma|allow|accept-ranges|www-authenticate|'
				'authorization|retry-after|strict-transport-security|link|server|via|warning)$')) NOT VALID;
	END IF;
END $$;
CALL rate_limit_describe('rate_limit_rules', $$
Rules that limit, block or exempt requests. A rule matches a request if all its conditions hold. A
	condition that is NULL always holds.
name: The name.
family: Within a family, only the matching rule with the highest priority applies. NULL: no family.
priority: The order of rules, highest first.
mode: enforce; shadow: the rule counts and reports but refuses nothing; off: the rule is ignored.
action: limit: the limits of the rule apply; block: requests are refused; exempt: no limits of rules apply
	to requests.
hosts: Host names without a port. *.example.com matches every name below example.com.
paths: Paths that start with a slash. * matches one segment; a final * matches the rest: /api/* matches
	/api/a/b.
methods: Methods, such as GET.
networks: Networks that contain the client's address. An unknown address is in none, except that for limit
	and block it is in {0.0.0.0/0,::/0}.
tiers: The user's tier must be one of these.
count_by: What each counter counts: a combination of user, key, tier, ip, ip/128, host, route and
	header:NAME. ip: an IPv4 address, or the /64 network of an IPv6 address; ip/128: each IPv6 address.
	Alternatives such as user|ip use the first that the request has. all: one counter for all requests.
without_header: For header:NAME in count_by. share: all requests with a missing or empty header share one
	counter; skip: the rule does not match them; refuse: they are refused with 401. With share and refuse, a
	CORS preflight without the header counts by its client.
valid: When the rule applies.
cost: The units that a request charges to each limit of requests.
settle: How to read the actual cost from the response: header X-Tokens, bytes, json usage.total_tokens, or
	status 401 403 = 1, else 0. NULL: the actual cost is cost.
status: The HTTP status of a refusal, from 400 to 599. NULL: 429 for limits, 403 for a block.
message: The text of a refusal. NULL: the proxy's text.
retry_after: The Retry-After of a refusal. NULL: for limits, the time until the request would pass; for a
	block, none.
comment: A note. Proxies ignore it.
created_at: When the row was created.
created_by: The role that created the row.
updated_at: When the row was last changed. Changes of its limits are in rate_limit_changes only.
counted_as: The first name of a renamed rule, by which the rule counts, so that it keeps its counters. A new
	rule with a name by which another rule counts gets another one here. NULL: the rule counts by its name.
$$);

CREATE TABLE IF NOT EXISTS rate_limit_rule_limits (
	rule      text NOT NULL CONSTRAINT rule_must_be_in_rate_limit_rules
		REFERENCES rate_limit_rules ON UPDATE CASCADE ON DELETE CASCADE,
	name      text NOT NULL,
	algorithm text NOT NULL DEFAULT 'sliding_window',
	events    bigint,
	per       interval,
	calendar  text,
	time_zone text,
	burst     bigint,
	durable   boolean,
	on_exceed text NOT NULL DEFAULT 'refuse',
	unit      text NOT NULL DEFAULT 'requests',
	output    bigint,
	fields    boolean NOT NULL DEFAULT true,
	notify    bigint[],
	PRIMARY KEY (rule, name),
	CONSTRAINT name_must_be_1_to_100_letters_digits_or_dots_dashes_underscores
		CHECK (name ~ '^[A-Za-z0-9._-]{1,100}$'),
	CONSTRAINT algorithm_must_be_one_that_the_documentation_names
		CHECK (algorithm IN ('sliding_window', 'fixed_window', 'token_bucket', 'sliding_log', 'gcra',
		'in_flight')),
	CONSTRAINT events_must_be_null_or_0_to_9007199254740992 CHECK (events BETWEEN 0 AND 9007199254740992),
	CONSTRAINT events_of_sliding_log_must_be_at_most_1000
		CHECK (algorithm <> 'sliding_log' OR events <= 1000),
	CONSTRAINT events_of_in_flight_must_be_at_most_1000 CHECK (algorithm <> 'in_flight' OR events <= 1000),
	CONSTRAINT exactly_one_of_per_and_calendar_must_be_given
		CHECK (num_nonnulls(per, calendar) = CASE algorithm WHEN 'in_flight' THEN 0 ELSE 1 END),
	CONSTRAINT per_must_be_1_ms_to_36525_days_without_months CHECK (
		date_trunc('month', per) = '0' AND per BETWEEN interval '1 ms'
			AND interval '36525 days'),
	CONSTRAINT calendar_must_be_day_or_week_or_month_or_year
		CHECK (calendar IN ('day', 'week', 'month', 'year')),
	CONSTRAINT calendar_needs_fixed_window CHECK (calendar IS NULL OR algorithm = 'fixed_window'),
	CONSTRAINT time_zone_needs_calendar CHECK (time_zone IS NULL OR calendar IS NOT NULL),
	CONSTRAINT burst_must_be_1_to_9007199254740992 CHECK (burst BETWEEN 1 AND 9007199254740992),
	CONSTRAINT burst_needs_token_bucket_or_gcra
		CHECK (burst IS NULL OR algorithm IN ('token_bucket', 'gcra')),
	CONSTRAINT gcra_must_have_burst_times_per_in_microseconds_up_to_2_pow_62 CHECK (algorithm <> 'gcra'
		OR greatest(coalesce(burst, events), events)::numeric * (extract(epoch
			FROM per) * 1000000) <= 4611686018427387904),
	CONSTRAINT gcra_must_drain_a_full_burst_within_36525_days CHECK (algorithm <> 'gcra' OR events = 0
		OR coalesce(burst, events)::numeric * extract(epoch FROM per) <= events::numeric * 3155760000),
	CONSTRAINT on_exceed_must_be_refuse_or_overage CHECK (on_exceed IN ('refuse', 'overage')),
	CONSTRAINT overage_needs_fixed_window_or_sliding_window
		CHECK (on_exceed <> 'overage' OR algorithm IN ('fixed_window', 'sliding_window')),
	CONSTRAINT unit_must_be_one_that_the_documentation_names
		CHECK (unit IN ('requests', 'tokens', 'input_tokens', 'output_tokens', 'money')),
	CONSTRAINT unit_other_than_requests_needs_fixed_window_or_sliding_window
		CHECK (unit = 'requests' OR algorithm IN ('fixed_window', 'sliding_window')),
	CONSTRAINT output_must_be_1_to_9007199254740992 CHECK (output BETWEEN 1 AND 9007199254740992),
	CONSTRAINT output_needs_unit_of_tokens CHECK (output IS NULL OR unit <> 'requests'),
	CONSTRAINT notify_needs_fixed_window CHECK (notify IS NULL OR algorithm = 'fixed_window'),
	CONSTRAINT notify_must_have_1_to_10_percentages_from_1_to_1000
		CHECK (rate_limit_each_matches(notify::text[], '^([1-9][0-9]{0,2}|1000)$')
			AND rate_limit_each_once(notify::text[]) AND cardinality(notify) <= 10)
);
CALL rate_limit_describe('rate_limit_rule_limits', $$
The limits of rules. A request passes only if all limits of its rules admit it.
rule: The name of the rule.
name: The name of the limit, unique within the rule, such as per_hour. The prefix of the counters is
	rule/, the rule's counted_as or name, a slash and this name.
algorithm: sliding_window, fixed_window, token_bucket, sliding_log, gcra or in_flight.
events: The quota per window, in millionths for money. For in_flight: the number of concurrent requests. 0:
	nothing passes. NULL: the limit applies only where an override has an amount.
per: The length of the window. A day is 24 hours. NULL with calendar, and for in_flight.
calendar: In place of per: day, week, month or year of the calendar. For users with a period_start, months
	and years start on that day.
time_zone: The IANA name of the calendar's time zone, as for users. NULL: UTC. Users with a period_start use
	their own time zone.
burst: The capacity of a token_bucket, or the largest burst that gcra allows. NULL: events. A token_bucket
	with a burst below events refills evenly.
durable: true: the counts survive a crash of the server. NULL: true with a unit of tokens, else false.
on_exceed: refuse; overage: requests beyond the quota pass, are counted, and have a mark in their
	responses.
unit: What is counted: requests, or tokens of language models, which responses report: tokens,
	input_tokens without those from a cache, or output_tokens; or money, by the prices of rate_limit_prices.
output: The tokens of output that a request holds until its response has ended if it names no maximum, with
	a unit of tokens or money. NULL: 4096.
fields: false: neither fields of responses nor bodies say what is left.
notify: Percentages of the quota. A counter that reaches one in a window gets a row in rate_limit_notices.
$$);
