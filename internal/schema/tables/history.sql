-- The comments of the history. No table refers to a table of the policy, so the history of a deleted rule or
-- user stays.

COMMENT ON SEQUENCE rate_limit_audit_id IS 'The ids of the rows of rate_limit_audit.';
CALL rate_limit_describe('rate_limit_audit', $$
The audit log: a row for each recorded request, or for several equal refusals. A refusal that a shadow rule
	would have made has a row of its own.
time: The time of the decision, by the clock of the proxy.
cost: The cost of one request, in millionths for money. For a refused request, the cost that it would have
	had.
count: The number of equal refusals within the same second that this row represents. The other columns
	describe the first of them.
quota: The full quota. NULL: no limit decided.
remaining: The units of the quota left after the decision.
key_id: The id of the API key in rate_limit_api_keys. NULL: none.
retry_after_ms: For a refusal, the time until the request would pass, in milliseconds. NULL: the request
	passed, it would never pass, or the time is unknown.
duration_us: The time that the decision took, in microseconds.
weight: The number of requests that each request of this row represents: above 1 if only a sample is
	recorded. count * weight is the estimated number of requests.
status: The HTTP status of a refusal. NULL: the request passed.
shadow: Whether a shadow rule would have had this outcome. The request has another row with its own outcome.
outcome: admitted; limited: refused by a limit; blocked: by a ban or a block rule; rejected: because the API
	key, the path or the body is not valid; overloaded: not decided in time while others were; failed: not
	decided.
reason: The reason for the outcome, if no limit decided: unknown_key, key_expired, key_revoked, no_key,
	ambiguous_path, upgrade, ambiguous_body, background, batch, binary_stream, slow_body, long_body,
	gone_body, many_bodies, no_price, banned, blocked, no_quota, timeout or unavailable.
model: The model that has no price, if the reason is no_price, up to 100 bytes of its name.
prefix: The prefix of the limit in a configuration, or rule/ and the name of the rule; empty if no limit
	applied. If several limits applied, it is the limit that refused, otherwise the limit with the least
	remaining.
limit_name: The name of the limit of the rule. NULL: a limit in a configuration.
key: The stored key of the counter, which is a digest if the key is a secret.
user_id: The user. NULL: an anonymous request.
tier: The tier of the user, with a policy.
address: The address of the client, or its network; see audit_address.
host: The host of the request.
method: The method of the request.
path: The path of the request without the query, up to 500 characters.
node: The name of the proxy.
region: The region of the proxy, if its configuration has one.
also: The other limits that the request matched, charged or not, as pairs of prefix and key. NULL: none.
id: A unique number.
unit: The unit of cost, quota and remaining: tokens, input_tokens, output_tokens or money. NULL: requests, or
	the unit of a limit that settles.
$$);
CALL rate_limit_describe('rate_limit_metrics', $$
Sums of requests by user, API key, deciding limit and endpoint, in a minute, an hour or a day, over all
	proxies of a region. Usage and invoices are computed from them.
granularity: minute, hour or day: each request counts in all three.
time: The start of the minute, hour or day, in UTC.
user_id: The user; empty: anonymous requests; (other): users beyond the first 10,000 combinations of a
	proxy in a minute.
key_id: The id of the API key; 0: none, or (other).
prefix: As in rate_limit_audit.
limit_name: The name of the limit of the rule; empty: a limit in a configuration, or none.
unit: The unit of settled: tokens, input_tokens, output_tokens or money, in millionths; empty:
	requests, or the unit of a limit that settles.
endpoint: The name of the route in the configuration, otherwise the paths of the matching rule or zone, but
	never the path of a request; (other): as for users.
region: The region of the proxies, if their configuration has one.
requests: All requests: the next six columns together. A request counts once, for the limit that refused
	it or has the least remaining.
admitted: Requests that passed.
limited: Requests that a limit refused.
blocked: Requests that a ban or a block rule refused.
rejected: Requests that were refused because of their API key, their path or their body.
overloaded: Requests that were not decided in time while others were.
failed: Other requests without a decision, whether they passed or not.
shadow: Refusals that shadow rules would have made. Their requests count in the other columns, too.
settled: Units that this limit charged for requests that passed, including requests counted under another
	limit. If the limit has settle, the actual cost, once their responses end.
from_memory: Limited requests that a proxy refused from memory, without the database.
from_lease: Admitted requests that a lease decided, without the database.
from_database: Requests that the database decided, because neither the memory of the proxy nor a lease
	could.
last_request: The time of the last request.
durations: The numbers of decisions by duration, in buckets; see rate_limit_percentile.
$$);
CALL rate_limit_describe('rate_limit_writers', $$
The processes that write the history, and the progress of each. A row that was not renewed for 30 days is
	deleted.
writer: A random name of the process.
node: The name of the proxy.
region: The region of the proxy, if its configuration has one.
batch: The number of the last written batch, so that a batch that is sent again after a failure is not written
	twice.
written: The number of decisions that the process has written to rate_limit_audit.
dropped: The number of decisions that the process could not write, because the database was slow or down
	for too long.
seen: The time of the last batch.
$$);
CALL rate_limit_describe('rate_limit_retention', $$
The retention of each part of the history. Upkeep deletes older rows. A proxy with a retention in its
	configuration writes it when it starts.
what: The part of the history: audit, metrics_minute, metrics_hour or metrics_day.
keep: The retention. A part without a row is kept for ever.
set_by: The proxy or the role that set the retention. NULL: it is the default.
set_at: When the retention was set.
upkeep_at: When upkeep last ran.
$$);
