-- rate_limit_describe sets the comments of a table or a view and of its columns. The first line of texts is
-- the comment of the table. Each later line is "column: meaning". A line that starts with a tab continues the
-- previous line. end.sql drops the procedure.

CREATE OR REPLACE PROCEDURE rate_limit_describe(relation text, texts text) LANGUAGE plpgsql AS $$
DECLARE
	line record;
BEGIN
	FOR line IN SELECT t.text, t.place FROM regexp_split_to_table(
		regexp_replace(btrim(texts, E'\n'), '\n\t+', ' ', 'g'), '\n') WITH ORDINALITY AS t(text, place)
	LOOP
		IF line.place = 1 THEN
			EXECUTE format('COMMENT ON %s %I IS %L', (SELECT CASE c.relkind WHEN 'v' THEN 'VIEW'
				ELSE 'TABLE' END FROM pg_class c WHERE c.oid = relation::regclass), relation, line.text);
		ELSE
			EXECUTE format('COMMENT ON COLUMN %I.%I IS %L', relation, split_part(line.text, ': ', 1),
				substring(line.text FROM ': (.*)'));
		END IF;
	END LOOP;
END $$;
