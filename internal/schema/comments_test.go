package schema_test

import (
	"fmt"
	"regexp"
	"strings"
)

var (
	// remarks matches lines of comments, and described what they can describe: the next command, or by its
	// name what another file or a body creates.
	remarks   = regexp.MustCompile(`(?m)(?:^--.*\n)+`)
	described = regexp.MustCompile(
		`^CREATE OR REPLACE (FUNCTION|VIEW|AGGREGATE) (\w+(?:\(\w+\[\]\))?)`)
	byName = regexp.MustCompile(`^-- (TABLE|FUNCTION|SEQUENCE|TYPE) (rate_limit_\w+): `)
	// column matches the first line about a column.
	column = regexp.MustCompile(`^--   (\w+): (.*)`)
)

// commentsSQL returns the commands that give the database the descriptions in a file. The comment above a
// function, a view or an aggregate, or one that begins with TABLE and a name, describes it up to a line with
// nothing but --. A line --   COLUMN: begins the description of a column.
func commentsSQL(text string) (sql string) {
	for _, at := range remarks.FindAllStringIndex(text, -1) {
		comment := text[at[0]:at[1]]
		object := byName.FindStringSubmatch(comment)
		if object != nil {
			comment = "-- " + comment[len(object[0]):]
		} else if object = described.FindStringSubmatch(text[at[1]:]); object == nil {
			continue
		}
		comment, _, _ = strings.Cut(comment, "\n--\n")
		of, meaning := object[1]+" "+object[2], ""
		add := func() {
			sql += fmt.Sprintf("COMMENT ON %s IS '%s';\n", of, strings.ReplaceAll(meaning[1:], "'", "''"))
		}
		for line := range strings.Lines(comment) {
			line = strings.TrimSpace(line)
			if found := column.FindStringSubmatch(line); found != nil {
				add()
				of, meaning = "COLUMN "+object[2]+"."+found[1], " "+found[2]
				continue
			}
			meaning += " " + strings.TrimSpace(line[2:])
		}
		add()
	}
	return sql
}
