package sqltest

import (
	"context"
	"errors"
	"regexp"
	"strings"
	"testing"

	"github.com/jackc/pgx/v5/pgconn"

	"github.com/pgratelimit/pg-ratelimit/internal/testkit/golden"
)

var pid = regexp.MustCompile(`\bpid \d+`)

// ReplayTranscripts replays the transcripts in the folder testdata of a package.
//
// A transcript is a file of SQL and of the server's answers, on a new database of New. Commands may take
// several lines, and end with a semicolon at the end of a line, outside of dollar quotes. They run as one
// implicit transaction, so an error undoes them all. The answer follows: a line with "= " for each row, or a
// line with "! " for an error. "other> " begins commands of a second session, and "#" begins a comment. <DB>
// is the name of the database, which the names of roles contain.
func ReplayTranscripts(t *testing.T) {
	golden.ReplayAll(t, "testdata/*.txt", func(t *testing.T, text string) string {
		return New(t).Replay(text)
	})
}

// Replay runs the commands of a transcript, and returns it with the results.
func (s *DB) Replay(transcript string) string {
	s.t.Helper()
	database := s.Query("SELECT current_database()")
	other := Connect(s.t, s.DSN)
	s.Exec("SET TimeZone = 'UTC'")
	other.Exec("SET TimeZone = 'UTC'")
	var got, command strings.Builder
	for line := range strings.Lines(transcript) {
		if strings.HasPrefix(line, "= ") || strings.HasPrefix(line, "! ") {
			continue // what the server returned last time
		}
		got.WriteString(line)
		if strings.HasPrefix(line, "#") {
			continue
		}
		command.WriteString(line)
		if !strings.HasSuffix(line, ";\n") || strings.Count(command.String(), "$$")%2 == 1 {
			continue
		}
		sql, isOther := strings.CutPrefix(strings.TrimSpace(command.String()), "other> ")
		command.Reset()
		session := s
		if isOther {
			session = other
		}
		result := session.runCommands(strings.ReplaceAll(sql, "<DB>", database))
		got.WriteString(pid.ReplaceAllString(strings.ReplaceAll(result, database, "<DB>"), "pid N"))
	}
	if command.Len() > 1 {
		s.t.Fatalf("no semicolon ends %s", command.String())
	}
	return got.String()
}

// runCommands runs commands and returns the lines of a transcript for their rows, or for their error.
func (s *DB) runCommands(sql string) (lines string) {
	results, err := s.Conn.PgConn().Exec(context.Background(), sql).ReadAll()
	if failure := (*pgconn.PgError)(nil); errors.As(err, &failure) {
		return "! " + failure.Message + "\n"
	} else if err != nil {
		s.t.Fatalf("%s: %v", sql, err)
	}
	for _, result := range results {
		if text := rowsOf(result); text != "" {
			lines += "= " + strings.ReplaceAll(text, "\n", "\n= ") + "\n"
		}
	}
	return lines
}

// rowsOf returns rows as lines, with a space between columns, and - for NULL.
func rowsOf(result *pgconn.Result) string {
	var lines []string
	for _, row := range result.Rows {
		var columns []string
		for _, column := range row {
			if column == nil {
				column = []byte("-")
			}
			columns = append(columns, string(column))
		}
		lines = append(lines, strings.Join(columns, " "))
	}
	return strings.Join(lines, "\n")
}
