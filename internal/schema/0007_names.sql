-- Users with another name than that by which they count are joined, and rate_limit_began and
-- rate_limit_totals_of do what the others did.
DROP FUNCTION IF EXISTS rate_limit_user_of(text);
DROP FUNCTION IF EXISTS rate_limit_came(uuid);
DROP FUNCTION IF EXISTS rate_limit_open_totals(text, timestamptz, timestamptz, text, text, boolean);
