-- The digests of forgotten names, see changes/forget.sql.

CREATE TABLE rate_limit_forgotten (
	digest bytea PRIMARY KEY,
	at     timestamptz NOT NULL DEFAULT now()
);
DROP FUNCTION IF EXISTS rate_limit_forget_person(text, bigint, text, inet, boolean, boolean);
