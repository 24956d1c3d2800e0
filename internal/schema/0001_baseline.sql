-- The tables of version 0.1.0. A numbered file runs once in a database, and never changes once it is on main.
-- The tables of counts and the ledger are in 0001_baseline.shards.sql, which each shard runs, too.
-- oldest program: 1

-- The rights of roles, by kind.

CREATE TABLE rate_limit_grants (
	role text,
	kind text,
	PRIMARY KEY (role, kind)
);

-- The registry of the proxies.

CREATE UNLOGGED TABLE rate_limit_nodes (
	node   text,
	epoch  bigint DEFAULT 0,
	seen   timestamptz NOT NULL DEFAULT now(),
	ended  timestamptz,
	system bigint DEFAULT (pg_control_system()).system_identifier,
	report json NOT NULL DEFAULT '{}',
	role   text DEFAULT session_user,
	PRIMARY KEY (node, epoch, role),
	CONSTRAINT seen_must_be_from_2000_to_2999
		CHECK (seen >= '2000-01-01 UTC' AND seen < '3000-01-01 UTC'),
	CONSTRAINT node_must_have_1_to_200_bytes CHECK (octet_length(node) BETWEEN 1 AND 200)
) WITH (fillfactor = 50);

CREATE TYPE rate_limit_report AS (region text, version text, cannot text, applied text, log oid,
	problems text[], clock bigint, local_from bigint, local_until bigint, requests bigint[],
	open_from bigint, open_until bigint, open_passed bigint, open_refused bigint, locally bigint,
	busiest json, lost bigint, lost_at bigint);
CREATE TABLE rate_limit_secrets (
	name  text PRIMARY KEY,
	value text NOT NULL
);
INSERT INTO rate_limit_secrets (name, value)
	VALUES ('partition', gen_random_uuid()::text || gen_random_uuid()::text);

-- The notices of counters that have reached a percentage of their quota. The percentages are in the policy,
-- which may be on another server, so that proxies pass them.

CREATE TABLE rate_limit_notices (
	rule       text NOT NULL,
	limit_name text NOT NULL,
	key        text COLLATE "C" NOT NULL,
	period     timestamptz NOT NULL,
	percent    bigint NOT NULL,
	used       numeric NOT NULL,
	quota      numeric NOT NULL,
	at         timestamptz NOT NULL DEFAULT now(),
	taken_at   timestamptz,
	resets_at  timestamptz,
	void_at    timestamptz NOT NULL DEFAULT 'infinity',
	id         uuid NOT NULL DEFAULT gen_random_uuid(),
	tried_at   timestamptz,
	try_at     timestamptz NOT NULL DEFAULT '-infinity',
	error      text,
	PRIMARY KEY (rule, limit_name, key, period, percent, quota, void_at)
);
CREATE INDEX rate_limit_notices_to_take ON rate_limit_notices (try_at, at)
	WHERE taken_at IS NULL AND void_at = 'infinity';

-- The retention of the ledger, and where the search for notices goes on.

CREATE TABLE rate_limit_ledger_retention (
	keep interval PRIMARY KEY CONSTRAINT keep_must_be_1_day_or_more CHECK (keep >= interval '1 day'),
	noticed_at timestamptz NOT NULL DEFAULT '-infinity',
	noticed_limit text NOT NULL DEFAULT '',
	noticed_key text NOT NULL DEFAULT '',
	currency text CONSTRAINT currency_must_be_a_code_of_three_letters_such_as_eur
		CHECK (currency ~ '^[A-Z]{3}$')
);
INSERT INTO rate_limit_ledger_retention VALUES ('400 days');

-- The totals of the ledger, which the upkeep makes of days that have ended.

CREATE TABLE rate_limit_ledger_days (
	day        date PRIMARY KEY,
	summed     boolean NOT NULL DEFAULT false,
	open_until timestamptz NOT NULL DEFAULT '-infinity'
);

CREATE TABLE rate_limit_totals (
	day              date,
	n                bigint,
	user_id          text NOT NULL,
	ancestors        text[] NOT NULL,
	own              boolean NOT NULL,
	settled          date NOT NULL,
	kind             text NOT NULL,
	model            text,
	prefix           text,
	unit             text,
	corrects         timestamptz,
	requests         bigint NOT NULL,
	units            numeric,
	input            numeric,
	cache_read       numeric,
	cache_write      numeric,
	output           numeric,
	money            numeric,
	remainder        numeric,
	cache_write_1h   numeric,
	audio_input      numeric,
	audio_cache_read numeric,
	audio_output     numeric,
	image_input      numeric,
	image_output     numeric,
	search           numeric,
	estimated_input  numeric,
	estimated_output numeric,
	estimated_money  numeric,
	PRIMARY KEY (day, n)
);
CREATE INDEX rate_limit_totals_user ON rate_limit_totals (user_id, settled);

-- The tables of the history. rate_limit_audit has one partition for each day in UTC; see
-- tables/partitions.sql. No table refers to a table of the policy, so the history of a deleted rule or user
-- stays.

CREATE TABLE rate_limit_audit (
	time           timestamptz NOT NULL,
	cost           bigint NOT NULL,
	count          bigint NOT NULL DEFAULT 1,
	quota          bigint,
	remaining      bigint,
	key_id         bigint,
	retry_after_ms bigint,
	duration_us    bigint NOT NULL,
	weight         float8 NOT NULL DEFAULT 1,
	status         integer,
	shadow         boolean NOT NULL DEFAULT false,
	outcome        text NOT NULL,
	reason         text,
	model          text,
	prefix         text NOT NULL,
	limit_name     text,
	key            text,
	user_id        text,
	tier           text,
	address        inet,
	host           text,
	method         text,
	path           text,
	node           text NOT NULL,
	region         text,
	also           text[],
	id             bigint,
	unit           text,
	CONSTRAINT outcome_must_be_as_in_docs_metrics_md
		CHECK (outcome IN ('admitted', 'limited', 'blocked', 'rejected', 'overloaded', 'failed'))
) PARTITION BY RANGE (time);
CREATE SEQUENCE rate_limit_audit_id OWNED BY rate_limit_audit.id;
CREATE INDEX rate_limit_audit_time ON rate_limit_audit USING brin (time)
	WITH (pages_per_range = 16, autosummarize = on);
CREATE INDEX rate_limit_audit_user ON rate_limit_audit (user_id, time)
	WHERE user_id IS NOT NULL;
-- Requests that passed have no entry in this index. With audit all, almost all rows are such requests, and
-- their entries would double the cost of a row.
CREATE INDEX rate_limit_audit_outcome ON rate_limit_audit (outcome, time)
	WHERE outcome <> 'admitted';
-- The index has a Bloom filter for each 300 to 600 rows. Writes cost almost nothing, and a search reads about
-- one in 1,000 block ranges needlessly. The column time makes the planner choose this index.
CREATE INDEX rate_limit_audit_who ON rate_limit_audit USING brin (time,
	key text_bloom_ops (n_distinct_per_range = 500, false_positive_rate = 0.001),
	address inet_bloom_ops (n_distinct_per_range = 500, false_positive_rate = 0.001),
	key_id int8_bloom_ops (n_distinct_per_range = 500, false_positive_rate = 0.001))
	WITH (pages_per_range = 8, autosummarize = on);

-- The sums from which metrics, usage and invoices are computed. A proxy adds each request to its minute, its
-- hour and its day in one statement, so days are always current. Minutes and hours have one partition for
-- each day in UTC; see tables/partitions.sql. Days have one table.
--
-- The unique index starts with the user, because queries look up a user in all days. The BRIN index finds a
-- period and costs a write almost nothing. The table has a unique index and no primary key, because
-- pg_restore --clean cannot drop primary keys of partitions.
CREATE TABLE rate_limit_metrics (
	granularity   text NOT NULL,
	time          timestamptz NOT NULL,
	user_id       text NOT NULL DEFAULT '',
	key_id        bigint NOT NULL DEFAULT 0,
	prefix        text NOT NULL DEFAULT '',
	limit_name    text NOT NULL DEFAULT '',
	unit          text NOT NULL DEFAULT '',
	endpoint      text NOT NULL DEFAULT '',
	region        text NOT NULL DEFAULT '',
	requests      bigint NOT NULL DEFAULT 0,
	admitted      bigint NOT NULL DEFAULT 0,
	limited       bigint NOT NULL DEFAULT 0,
	blocked       bigint NOT NULL DEFAULT 0,
	rejected      bigint NOT NULL DEFAULT 0,
	overloaded    bigint NOT NULL DEFAULT 0,
	failed        bigint NOT NULL DEFAULT 0,
	shadow        bigint NOT NULL DEFAULT 0,
	settled       bigint NOT NULL DEFAULT 0,
	from_memory   bigint NOT NULL DEFAULT 0,
	from_lease    bigint NOT NULL DEFAULT 0,
	from_database bigint NOT NULL DEFAULT 0,
	last_request  timestamptz NOT NULL,
	durations     bigint[] NOT NULL DEFAULT '{}',
	CONSTRAINT granularity_must_be_minute_hour_or_day CHECK (granularity IN ('minute', 'hour', 'day'))
) PARTITION BY LIST (granularity);
CREATE UNIQUE INDEX rate_limit_metrics_key ON rate_limit_metrics (user_id, time, key_id,
	prefix, limit_name, unit, endpoint, region, granularity);
CREATE INDEX rate_limit_metrics_time ON rate_limit_metrics USING brin (time)
	WITH (pages_per_range = 16, autosummarize = on);

DO $$
DECLARE
	part text;
BEGIN
	FOREACH part IN ARRAY ARRAY['minute', 'hour', 'day'] LOOP
		EXECUTE format('CREATE TABLE rate_limit_metrics_%1$s (LIKE rate_limit_metrics INCLUDING ALL) %2$s;
			ALTER TABLE rate_limit_metrics ATTACH PARTITION rate_limit_metrics_%1$s FOR VALUES IN (%1$L);
			COMMENT ON TABLE rate_limit_metrics_%1$s IS ''The %1$ss of rate_limit_metrics, in UTC.''',
			part, CASE WHEN part <> 'day' THEN 'PARTITION BY RANGE (time)' END);
	END LOOP;
	-- Logical replication identifies rows by this index, as by a primary key.
	EXECUTE (SELECT format('ALTER TABLE rate_limit_metrics_day REPLICA IDENTITY USING INDEX %I', c.relname)
		FROM pg_index i JOIN pg_class c ON c.oid = i.indexrelid
		WHERE i.indrelid = 'rate_limit_metrics_day'::regclass AND i.indisunique);
END $$;

CREATE TABLE rate_limit_writers (
	writer  text PRIMARY KEY,
	node    text NOT NULL,
	region  text,
	batch   bigint NOT NULL,
	written bigint NOT NULL DEFAULT 0,
	dropped bigint NOT NULL DEFAULT 0,
	seen    timestamptz NOT NULL DEFAULT now()
);

CREATE TABLE rate_limit_retention (
	what   text PRIMARY KEY,
	keep   interval NOT NULL,
	set_by text,
	set_at timestamptz NOT NULL DEFAULT now(),
	upkeep_at timestamptz,
	CONSTRAINT what_must_be_audit_or_metrics_of_minute_hour_or_day
		CHECK (what IN ('audit', 'metrics_minute', 'metrics_hour', 'metrics_day')),
	CONSTRAINT keep_must_be_1_day_or_more CHECK (keep >= interval '1 day')
);
INSERT INTO rate_limit_retention (what, keep) VALUES ('audit', '90 days'), ('metrics_minute', '7 days'),
	('metrics_hour', '90 days'), ('metrics_day', '7 years');

-- The tables of tiers, users and API keys. A digest identifies a key, because the key itself is not stored.
--
-- Users can be below others. A foreign key ties the parent and its level, and the level of a user is one more
-- than its parent's. So no chain of parents ends in itself or is too long, whatever runs at the same time: if
-- a level changes, the levels below follow.

CREATE TABLE rate_limit_tiers (
	tier    text PRIMARY KEY,
	rank    bigint NOT NULL DEFAULT 0,
	comment text,
	CONSTRAINT tier_must_be_1_to_100_characters_without_spaces_or_slashes
		CHECK (tier ~ '^[^/[:space:][:cntrl:]]{1,100}$')
);
INSERT INTO rate_limit_tiers (tier, rank, comment)
	VALUES ('anonymous', -1, 'requests with neither an API key nor a user');

CREATE TABLE rate_limit_users (
	user_id      text PRIMARY KEY,
	tier         text NOT NULL CONSTRAINT tier_must_be_in_rate_limit_tiers
		REFERENCES rate_limit_tiers ON UPDATE CASCADE,
	tier_until   timestamptz NOT NULL DEFAULT 'infinity',
	period_start date,
	time_zone    text NOT NULL DEFAULT 'UTC',
	comment      text,
	created_at   timestamptz NOT NULL DEFAULT now(),
	updated_at   timestamptz NOT NULL DEFAULT now(),
	parent       text,
	parent_level int,
	level        int NOT NULL DEFAULT 1,
	counted_as   text,
	CONSTRAINT level_must_be_one_more_than_parent_level CHECK (level = coalesce(parent_level, 0) + 1),
	CONSTRAINT parent_must_not_be_below_the_user_or_make_more_than_four_levels
		CHECK (CASE WHEN num_nulls(parent, parent_level) = 0
			THEN parent_level BETWEEN 1 AND 3 AND parent <> user_id
			ELSE num_nulls(parent, parent_level) = 2 END),
	CONSTRAINT user_id_must_have_1_to_512_bytes CHECK (octet_length(user_id) BETWEEN 1 AND 512),
	CONSTRAINT period_start_must_be_a_day_from_1900_to_2999 CHECK (period_start BETWEEN '1900-01-01'
		AND '2999-12-31')
);
CREATE INDEX rate_limit_users_tier ON rate_limit_users (tier);
CREATE UNIQUE INDEX rate_limit_users_level ON rate_limit_users (user_id, level);
CREATE UNIQUE INDEX rate_limit_users_must_count_by_different_names
	ON rate_limit_users (coalesce(counted_as, user_id));
ALTER TABLE rate_limit_users ADD CONSTRAINT parent_must_be_in_rate_limit_users
	FOREIGN KEY (parent, parent_level) REFERENCES rate_limit_users (user_id, level)
	ON UPDATE CASCADE ON DELETE RESTRICT DEFERRABLE INITIALLY DEFERRED;
CREATE INDEX rate_limit_users_parent ON rate_limit_users (parent) WHERE parent IS NOT NULL;
CREATE INDEX rate_limit_users_time_zone ON rate_limit_users (time_zone)
	WHERE time_zone <> 'UTC';
CREATE INDEX rate_limit_users_tier_until ON rate_limit_users (tier_until)
	WHERE tier_until < 'infinity';

CREATE TABLE rate_limit_api_keys (
	id          bigint GENERATED BY DEFAULT AS IDENTITY PRIMARY KEY,
	digest      bytea NOT NULL CONSTRAINT rate_limit_api_keys_digest_must_be_new UNIQUE,
	hint        text,
	name        text,
	user_id     text NOT NULL CONSTRAINT user_id_must_be_in_rate_limit_users
		REFERENCES rate_limit_users ON UPDATE CASCADE ON DELETE CASCADE,
	tier        text CONSTRAINT tier_must_be_in_rate_limit_tiers
		REFERENCES rate_limit_tiers ON UPDATE CASCADE,
	expires_at  timestamptz NOT NULL DEFAULT 'infinity',
	revoked_at  timestamptz,
	revoked_by  text,
	replaced_by bigint CONSTRAINT replaced_by_must_be_the_id_of_a_key
		REFERENCES rate_limit_api_keys ON DELETE SET NULL,
	counted_as  bigint CONSTRAINT counted_as_must_be_the_id_of_a_key
		REFERENCES rate_limit_api_keys ON DELETE SET NULL,
	created_at  timestamptz NOT NULL DEFAULT now(),
	CONSTRAINT id_must_be_above_0 CHECK (id > 0),
	CONSTRAINT digest_must_be_a_sha256_of_32_bytes CHECK (octet_length(digest) = 32),
	CONSTRAINT hint_must_not_be_long_enough_to_be_a_key CHECK (length(hint) <= 16),
	CONSTRAINT name_must_have_1_to_200_characters CHECK (length(name) BETWEEN 1 AND 200),
	CONSTRAINT revoked_by_needs_revoked_at CHECK (revoked_by IS NULL OR revoked_at IS NOT NULL),
	CONSTRAINT replaced_by_must_be_another_key CHECK (replaced_by <> id)
);
CREATE INDEX rate_limit_api_keys_user_id ON rate_limit_api_keys (user_id);

-- The prices of language models. A cost in money is in millionths of the currency of the prices. So it is the
-- number of tokens times the price of a million of them.

CREATE TABLE rate_limit_prices (
	model             text NOT NULL,
	valid             tstzrange NOT NULL DEFAULT '(,)',
	input             numeric NOT NULL,
	cache_read        numeric,
	cache_write       numeric,
	output            numeric NOT NULL,
	above             bigint,
	above_input       numeric,
	above_cache_read  numeric,
	above_cache_write numeric,
	above_output      numeric,
	max_output        bigint,
	comment           text,
	created_at        timestamptz NOT NULL DEFAULT now(),
	updated_at        timestamptz NOT NULL DEFAULT now(),
	parts             text[],
	tiers             text[],
	source            text,
	PRIMARY KEY (model, valid),
	CONSTRAINT model_must_be_a_name_that_may_end_in_an_asterisk
		CHECK (model ~ '^([^*[:cntrl:]]{1,199}|[^*[:cntrl:]]{0,199}[*])$'),
	CONSTRAINT valid_must_not_be_empty CHECK (NOT isempty(valid)),
	CONSTRAINT above_must_be_1_to_9007199254740992 CHECK (above BETWEEN 1 AND 9007199254740992),
	CONSTRAINT above_needs_above_input_and_above_output
		CHECK (num_nonnulls(above, above_input, above_output) IN (0, 3)),
	CONSTRAINT above_cache_read_needs_above CHECK (above_cache_read IS NULL OR above IS NOT NULL),
	CONSTRAINT above_cache_write_needs_above CHECK (above_cache_write IS NULL OR above IS NOT NULL),
	CONSTRAINT max_output_must_be_1_to_9007199254740992 CHECK (max_output BETWEEN 1 AND 9007199254740992),
	CONSTRAINT parts_must_be_prices_of_parts_as_the_documentation_names_them
		CHECK (rate_limit_each_matches(parts, '^(cache_read|cache_write|cache_write_1h|audio_input|'
			'audio_cache_read|audio_output|image_input|image_output|search|request|(input|output|cache_read|'
			'cache_write|cache_write_1h|audio_input|audio_cache_read|audio_output|image_input|image_output|'
			'search|request)@[1-9][0-9]{0,14})=(1000000000|[0-9]{1,9}([.][0-9]{1,12})?)$')),
	CONSTRAINT parts_must_have_each_name_once_and_none_that_has_a_column CHECK (concat_ws(',',
		CASE WHEN cache_read IS NOT NULL THEN 'cache_read=' END,
		CASE WHEN cache_write IS NOT NULL THEN 'cache_write=' END, array_to_string(parts, ','))
		!~ '(^|,)([^=]+=)[^,]*(,.*)?,\2' AND (above IS NULL OR NOT array_to_string(parts, ',') ~ '@')),
	CONSTRAINT tiers_must_be_factors_or_prices_that_the_documentation_names
		CHECK (rate_limit_each_matches(tiers, '^[a-z][a-z0-9_-]{0,39}'
			'([.](input|output|cache_read|cache_write|cache_write_1h|audio_input|audio_cache_read|'
			'audio_output|image_input|image_output|search|request)(@[1-9][0-9]{0,14})?)?'
			'=(1000000000|[0-9]{1,9}([.][0-9]{1,12})?)$')),
	CONSTRAINT tiers_must_have_each_name_once
		CHECK (array_to_string(tiers, ',') !~ '(^|,)([^=]+=)[^,]*(,.*)?,\2')
);

DO $$
DECLARE
	price text;
BEGIN
	FOREACH price IN ARRAY '{input,cache_read,cache_write,output,above_input,above_cache_read,'
		'above_cache_write,above_output}'::text[] LOOP
		EXECUTE format('ALTER TABLE rate_limit_prices ADD CONSTRAINT %I CHECK (%I BETWEEN 0 AND 1000000000)',
			price || '_must_be_0_to_1000000000', price);
	END LOOP;
END $$;

-- The tables of rules and their limits. The constraints on limits agree with ratelimit.Limit.Validate. The
-- constraints on paths, hosts and count_by refuse values that proxies cannot use.

CREATE TABLE rate_limit_rules (
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
	counted_as  text,
	CONSTRAINT rate_limit_rules_of_a_family_must_have_different_priorities UNIQUE (family,
		priority) DEFERRABLE,
	CONSTRAINT rate_limit_rules_must_count_by_different_names
		EXCLUDE USING btree ((coalesce(counted_as, name)) WITH =) DEFERRABLE,
	CONSTRAINT counted_as_must_be_1_to_120_letters_digits_or_dots_dashes
		CHECK (counted_as ~ '^[A-Za-z0-9._-]{1,120}$'),
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
	CONSTRAINT count_by_must_be_of_user_key_tier_ip_host_route_header_or_all
		CHECK (rate_limit_each_matches(count_by, '^(all|((user|key|tier|ip|ip/128|host|route|'
			'header:[A-Za-z0-9!#$%&''*+.^_~-]+)(\|(?!$)|$))+)$')),
	CONSTRAINT count_by_all_must_stand_alone
		CHECK (cardinality(count_by) = 1 OR 'all' <> ALL (count_by)),
	CONSTRAINT count_by_must_have_each_name_once CHECK (rate_limit_each_once(count_by)),
	CONSTRAINT without_header_must_be_share_or_skip_or_refuse
		CHECK (without_header IN ('share', 'skip', 'refuse')),
	CONSTRAINT valid_must_not_be_empty CHECK (NOT isempty(valid)),
	CONSTRAINT cost_must_be_1_to_9007199254740992 CHECK (cost BETWEEN 1 AND 9007199254740992),
	CONSTRAINT settle_must_be_header_or_bytes_or_json_or_status CHECK (settle ~
		'^(bytes|header [A-Za-z0-9!#$%&''*+.^_|~-]+|json '
		'[^[:space:][:cntrl:].]+(\.[^[:space:][:cntrl:].]+)*|status [1-5][0-9]{2}( [1-5][0-9]{2})* = '
		'[0-9]{1,15}, else [0-9]{1,15})$'),
	-- The names are as in internal/core/option.
	CONSTRAINT settle_must_take_a_header_of_its_own_that_clients_do_not_need
		CHECK (settle !~* ('^header (grpc-.*|content-.*|access-control-.*|sec-.*|proxy-.*|set-cookie|'
			'trailer|transfer-encoding|connection|keep-alive|upgrade|te|date|location|vary|etag|'
			'last-modified|cache-control|expires|age|pragma|allow|accept-ranges|www-authenticate|'
			'authorization|retry-after|strict-transport-security|link|server|via|warning)$')),
	CONSTRAINT status_must_be_400_to_599 CHECK (status BETWEEN 400 AND 599),
	CONSTRAINT message_must_have_at_most_4096_bytes CHECK (octet_length(message) <= 4096),
	CONSTRAINT retry_after_must_be_0_to_36525_days_without_months CHECK (
		date_trunc('month', retry_after) = '0' AND retry_after BETWEEN interval '0' AND interval '36525 days')
);

CREATE TABLE rate_limit_rule_limits (
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
	batches   text NOT NULL DEFAULT 'refuse',
	fields    boolean NOT NULL DEFAULT true,
	notify    bigint[],
	counted_as text,
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
	CONSTRAINT batches_must_be_refuse_or_pass CHECK (batches IN ('refuse', 'pass')),
	CONSTRAINT batches_need_unit_of_tokens CHECK (batches = 'refuse' OR unit <> 'requests'),
	CONSTRAINT notify_needs_fixed_window CHECK (notify IS NULL OR algorithm = 'fixed_window'),
	CONSTRAINT notify_must_have_1_to_10_percentages_from_1_to_1000
		CHECK (rate_limit_each_matches(notify::text[], '^([1-9][0-9]{0,2}|1000)$')
			AND rate_limit_each_once(notify::text[]) AND cardinality(notify) <= 10)
);

-- The tables of overrides and bans.

CREATE TABLE rate_limit_overrides (
	id         bigint GENERATED BY DEFAULT AS IDENTITY PRIMARY KEY,
	rule       text NOT NULL,
	limit_name text NOT NULL,
	tier       text CONSTRAINT tier_must_be_in_rate_limit_tiers REFERENCES rate_limit_tiers ON UPDATE CASCADE
		ON DELETE CASCADE,
	user_id    text CONSTRAINT user_id_must_be_in_rate_limit_users
		REFERENCES rate_limit_users ON UPDATE CASCADE ON DELETE CASCADE,
	key_id     bigint CONSTRAINT key_id_must_be_in_rate_limit_api_keys
		REFERENCES rate_limit_api_keys ON UPDATE CASCADE ON DELETE CASCADE,
	events     bigint,
	burst      bigint,
	valid      tstzrange NOT NULL DEFAULT '(,)',
	reason     text,
	created_at timestamptz NOT NULL DEFAULT now(),
	created_by text NOT NULL DEFAULT session_user,
	CONSTRAINT rule_and_limit_name_must_be_in_rate_limit_rule_limits FOREIGN KEY (rule, limit_name)
		REFERENCES rate_limit_rule_limits ON UPDATE CASCADE ON DELETE CASCADE,
	CONSTRAINT exactly_one_of_tier_user_id_and_key_id_must_be_given
		CHECK (num_nonnulls(tier, user_id, key_id) = 1),
	CONSTRAINT events_must_be_null_or_0_to_9007199254740992 CHECK (events BETWEEN 0 AND 9007199254740992),
	CONSTRAINT burst_must_be_1_to_9007199254740992 CHECK (burst BETWEEN 1 AND 9007199254740992),
	CONSTRAINT valid_must_not_be_empty CHECK (NOT isempty(valid))
);
CREATE UNIQUE INDEX rate_limit_overrides_must_differ_in_more_than_the_amount
	ON rate_limit_overrides (rule, limit_name, tier, user_id, key_id, valid) NULLS NOT DISTINCT;

-- Indexes for columns with foreign keys. These columns are NULL in most rows, which the indexes leave out.
DO $$
DECLARE
	source record;
BEGIN
	FOR source IN SELECT t.name, part FROM (VALUES ('api_keys', '{replaced_by,counted_as,tier}'::text[]),
		('overrides', '{tier,user_id,key_id}')) AS t(name, parts), unnest(t.parts) AS part
	LOOP
		EXECUTE format('CREATE INDEX rate_limit_%1$s_%2$s ON rate_limit_%1$s (%2$s)
			WHERE %2$s IS NOT NULL', source.name, source.part);
	END LOOP;
END $$;

CREATE TABLE rate_limit_bans (
	id         bigint GENERATED BY DEFAULT AS IDENTITY PRIMARY KEY,
	network    cidr CONSTRAINT rate_limit_bans_network_must_not_be_banned_twice UNIQUE,
	user_id    text CONSTRAINT rate_limit_bans_user_id_must_not_be_banned_twice UNIQUE,
	key_id     bigint CONSTRAINT rate_limit_bans_key_id_must_not_be_banned_twice UNIQUE
		CONSTRAINT key_id_must_be_in_rate_limit_api_keys REFERENCES rate_limit_api_keys ON UPDATE CASCADE
			ON DELETE CASCADE,
	until      timestamptz NOT NULL DEFAULT 'infinity',
	reason     text,
	banned_at  timestamptz NOT NULL DEFAULT now(),
	banned_by  text NOT NULL DEFAULT session_user,
	CONSTRAINT exactly_one_of_network_user_id_and_key_id_must_be_given
		CHECK (num_nonnulls(network, user_id, key_id) = 1),
	CONSTRAINT user_id_must_have_1_to_512_bytes CHECK (octet_length(user_id) BETWEEN 1 AND 512)
);
CREATE INDEX rate_limit_bans_until ON rate_limit_bans (until);

-- The log of changes, by which proxies find the rows that they must load again.

CREATE TABLE rate_limit_changes (
	seq    bigint GENERATED ALWAYS AS IDENTITY PRIMARY KEY,
	xid    xid8 NOT NULL DEFAULT pg_current_xact_id(),
	kind   text NOT NULL,
	ref    text,
	at     timestamptz NOT NULL DEFAULT now(),
	by     text NOT NULL,
	before jsonb,
	after  jsonb,
	CONSTRAINT kind_must_be_what_a_table_holds
		CHECK (kind IN ('tier', 'user', 'key', 'rule', 'limit', 'override', 'ban', 'price'))
);
CREATE INDEX rate_limit_changes_xid ON rate_limit_changes (xid);
CREATE INDEX rate_limit_changes_limit ON rate_limit_changes (ref, seq) WHERE kind = 'limit';
CREATE INDEX rate_limit_changes_at ON rate_limit_changes (at);
