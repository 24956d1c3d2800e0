-- The tables of another rate limiter, with four rules and four users. The test adds the API keys.
CREATE TABLE rate_limit_rules (rule_id uuid PRIMARY KEY DEFAULT gen_random_uuid(),
rule_name varchar(255) NOT NULL UNIQUE, priority integer NOT NULL DEFAULT 100,
	user_tier varchar(50), endpoint_pattern varchar(500), http_method varchar(10), ip_range cidr,
	algorithm varchar(50) NOT NULL,
	requests_per_second integer, requests_per_minute integer, requests_per_hour integer,
	requests_per_day integer, burst_size integer,
	action varchar(50) NOT NULL DEFAULT 'throttle', response_status integer DEFAULT 429,
	response_message text, retry_after_seconds integer,
	created_at timestamp DEFAULT now(), updated_at timestamp DEFAULT now(), created_by varchar(255),
	enabled boolean DEFAULT true);
CREATE TABLE user_quotas (user_id bigint PRIMARY KEY, tier varchar(50) NOT NULL DEFAULT 'free',
custom_limit_per_hour integer, custom_limit_per_day integer,
	custom_burst_size integer, is_blocked boolean DEFAULT false, block_reason text, blocked_until timestamp);
CREATE TABLE api_keys (api_key_id uuid PRIMARY KEY DEFAULT gen_random_uuid(),
api_key_hash varchar(255) NOT NULL UNIQUE, user_id bigint NOT NULL REFERENCES user_quotas (user_id),
	key_name varchar(255), tier varchar(50) NOT NULL DEFAULT 'free', requests_per_second integer,
	requests_per_hour integer, requests_per_day integer, burst_size integer,
	is_active boolean DEFAULT true, expires_at timestamp, revoked_at timestamp, revoked_by varchar(255));
INSERT INTO rate_limit_rules (rule_name, priority, user_tier, algorithm, requests_per_hour, burst_size)
VALUES ('free_tier_limit', 700, 'free', 'token_bucket', 1000, 20);
INSERT INTO rate_limit_rules (rule_name, priority, user_tier, algorithm, requests_per_hour)
VALUES ('pro_tier_limit', 650, 'pro', 'sliding_window', 5000);
INSERT INTO rate_limit_rules (rule_name, priority, endpoint_pattern, algorithm, requests_per_second)
VALUES ('api_v1_limit', 600, '/api/v1/*', 'sliding_window', 100000);
INSERT INTO rate_limit_rules (rule_name, endpoint_pattern, http_method, algorithm, action, response_status,
response_message)
	VALUES ('no_deletes', '/api/v1/*', 'delete', 'sliding_window', 'block', 405, 'read only');
INSERT INTO user_quotas (user_id, tier, custom_limit_per_hour, custom_burst_size, custom_limit_per_day)
VALUES (1, 'free', NULL, NULL, NULL), (2, 'pro', 7000, NULL, 9), (4, 'free', NULL, 30, NULL);
INSERT INTO user_quotas (user_id, is_blocked, block_reason) VALUES (3, true, 'fraud');
INSERT INTO api_keys (api_key_hash, user_id, key_name, tier, is_active, requests_per_hour) VALUES
	(encode(sha256('key-of-1'), 'hex'), 1, 'laptop', 'free', true, NULL),
	(upper(encode(sha256('key-of-2'), 'hex')), 2, '', 'pro', true, NULL),
	(encode(sha256('revoked'), 'hex'), 2, 'old', 'pro', false, NULL),
	(encode(sha256('key-of-3'), 'hex'), 3, 'of the blocked', 'free', true, NULL),
	(encode(sha256('pro-key-of-1'), 'hex'), 1, 'of a higher tier', 'pro', true, 6000),
	('$2b$12$abcdefghijklmnopqrstuuABCDEFGHIJKLMNOPQRSTUV0123456789ab', 1, 'bcrypt', 'free', true, NULL),
	(encode(sha256('key-of-4'), 'hex'), 4, 'burst', 'free', true, NULL);
