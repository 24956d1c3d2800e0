-- A reset is done by rate_limit_reset_counters.
DROP FUNCTION IF EXISTS rate_limit_restart_windows(text, text[]);
