-- The comments of rules and their limits. rate_limit_fault converts the name of a constraint to an error: the
-- column, the value, and the rest of the name with spaces.

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
CREATE OR REPLACE FUNCTION rate_limit_conditions(r rate_limit_rules) RETURNS jsonb LANGUAGE sql STABLE
RETURN jsonb_strip_nulls(jsonb_build_object('hosts', r.hosts, 'paths', r.paths, 'methods', r.methods,
	'networks', r.networks));
COMMENT ON FUNCTION rate_limit_conditions IS 'The conditions of a rule besides its tiers and times.';
CALL rate_limit_describe('rate_limit_rule_limits', $$
The limits of rules. A request passes only if all limits of its rules admit it.
rule: The name of the rule.
name: The name of the limit, unique within the rule, such as per_hour. The prefix of the counters is
	rule/, the rule's counted_as or name, a slash, and the limit's counted_as or name.
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
	input_tokens (from a cache or not), or output_tokens; or money, by the prices of rate_limit_prices.
output: The tokens of output that a request holds until its response has ended if it names no maximum, with
	a unit of tokens or money. NULL: 4096.
batches: refuse: with a unit of tokens or money, requests for batches are refused, because their answers come
	later; pass: they pass, and cost nothing.
fields: false: neither fields of responses nor bodies say what is left.
notify: Percentages of the quota. A counter that reaches one in a window gets a row in rate_limit_notices.
counted_as: The name by which the limit counts since its unit changed, so that no unit has the counts of
	another. NULL: the limit counts by its name.
$$);
