package docs

import (
	"bufio"
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgconn"

	"github.com/pgratelimit/pg-ratelimit/internal/testkit/cluster"
	"github.com/pgratelimit/pg-ratelimit/internal/testkit/harness"
)

// In console blocks, a line that begins with "$ " is a command, and the lines below it are the command's
// output. In SQL blocks, comments directly below a statement are the statement's rows, or its error. "…"
// matches any text in a line, or any lines if it is alone in its line.

// matchesPage reports whether lines are as the page shows them.
func matchesPage(lines, shown []string) bool {
	if len(shown) == 0 {
		return len(lines) == 0
	}
	if strings.TrimSpace(shown[0]) == "…" {
		for i := 0; i <= len(lines); i++ {
			if matchesPage(lines[i:], shown[1:]) {
				return true
			}
		}
		return false
	}
	if len(lines) == 0 {
		return false
	}
	pattern := "^" + strings.ReplaceAll(regexp.QuoteMeta(shown[0]), "…", ".*") + "$"
	return regexp.MustCompile(pattern).MatchString(lines[0]) && matchesPage(lines[1:], shown[1:])
}

// shell is a shell that keeps its variables between commands.
type shell struct {
	*testing.T
	in  io.Writer
	out *bufio.Reader
}

// newShell starts a shell for commands on a database, with a caddy and the programs of Postgres.
func newShell(t *testing.T, dsn string) *shell {
	t.Helper()
	programs := t.TempDir()
	if err := os.Symlink(harness.Caddy(t, root), filepath.Join(programs, "caddy")); err != nil {
		t.Fatal(err)
	}
	bin, err := cluster.Binaries(t.Context(), "", os.Stderr)
	if err != nil {
		t.Fatal(err)
	}
	cmd := exec.Command("sh", "-c", "exec 2>&1; exec sh")
	cmd.Dir = t.TempDir()
	cmd.Env = append(os.Environ(), "DATABASE_URL="+dsn, "HOME="+cmd.Dir,
		"PATH="+programs+":"+bin+":"+os.Getenv("PATH"), "NO_PROXY=*")
	in, err := cmd.StdinPipe()
	if err != nil {
		t.Fatal(err)
	}
	out, err := cmd.StdoutPipe()
	if err != nil {
		t.Fatal(err)
	}
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		_ = in.Close() // the shell ends
		_ = cmd.Wait()
	})
	return &shell{t, in, bufio.NewReader(out)}
}

const endOfCommand = "the command has ended with status "

// run runs a command and returns what it prints, on standard output and error.
func (s *shell) run(command string) (lines []string, status string) {
	s.Helper()
	if _, err := fmt.Fprintf(s.in, "%s\nprintf '\\n%s%%d\\n' $?\n", command, endOfCommand); err != nil {
		s.Fatal(err)
	}
	for {
		line, err := s.out.ReadString('\n')
		if err != nil {
			s.Fatalf("%s: %v\n%s", command, err, joinLines(lines))
		}
		line = strings.TrimRight(line, " \r\n")
		if end, ended := strings.CutPrefix(line, endOfCommand); ended {
			// The mark begins on a line of its own.
			if len(lines) > 0 && lines[len(lines)-1] == "" {
				lines = lines[:len(lines)-1]
			}
			return lines, end
		}
		lines = append(lines, line)
	}
}

// must is like run for a command that must succeed and print something.
func (s *shell) must(command string) []string {
	s.Helper()
	lines, status := s.run(command)
	if status != "0" || len(lines) == 0 {
		s.Fatalf("%s ends with status %s, want 0 and output:\n%s", command, status, joinLines(lines))
	}
	return lines
}

// ofHistory matches commands that read the history, which proxies write in the background.
var ofHistory = regexp.MustCompile(`^caddy pg-ratelimit (audit --user|top --since|usage|users ` +
	`list|replay|forget .*--dry-run)`)

// untilShown returns what print returns. If that is of the history, it calls print again until the lines are
// as the page shows them, for a minute.
func untilShown(ofHistory bool, shown []string, print func() []string) []string {
	printed := print()
	for end := time.Now().Add(time.Minute); ofHistory && !matchesPage(printed, shown) &&
		time.Now().Before(end); time.Sleep(100 * time.Millisecond) {
		printed = print()
	}
	return printed
}

// inForce matches the line with which a command says whether its change of the policy is in force. On a busy
// machine, it may not be in force yet.
var inForce = regexp.MustCompile(`^(In force at 1 proxy|Not in force) after `)

// runConsole runs the commands of a block. It does not wait for a change that a command says to be in force.
func (k *recipeEnv) runConsole(b block) {
	k.Helper()
	lines := strings.Split(strings.TrimRight(b.text, "\n"), "\n")
	for i := 0; i < len(lines); {
		command, found := strings.CutPrefix(lines[i], "$ ")
		if !found {
			k.Fatalf("%s: the line is %q, want a command after $", b, lines[i])
		}
		var shown []string
		for i++; i < len(lines) && !strings.HasPrefix(lines[i], "$ "); i++ {
			shown = append(shown, strings.TrimRight(lines[i], " "))
		}
		command = strings.NewReplacer("localhost:8080", k.proxy, "http://localhost:2019/metrics", k.metrics).
			Replace(command)
		var status string
		printed := untilShown(ofHistory.MatchString(command), shown, func() (lines []string) {
			lines, status = k.shell.run(command)
			return lines
		})
		applied := slices.ContainsFunc(printed, func(line string) bool {
			return strings.HasPrefix(line, "In force")
		})
		if !applied || !slices.ContainsFunc(shown, inForce.MatchString) { // the page shows the line once
			printed = slices.DeleteFunc(printed, inForce.MatchString)
		}
		if !applied {
			shown = slices.DeleteFunc(shown, inForce.MatchString)
		}
		if status != "0" || !matchesPage(printed, shown) {
			k.Errorf("%s: %s\nends with status %s and prints\n%s\nwant, by the page,\n%s", b, command, status,
				joinLines(printed), joinLines(shown))
		}
		if !applied && !strings.Contains(command, "curl ") {
			k.awaitPolicyApplied()
		}
	}
}

// statement is an SQL statement of a block, with the lines that the page shows below it.
type statement struct {
	sql   string
	shown []string
}

// statementsOf returns the statements of a block. Each ends with a semicolon at the end of a line.
func statementsOf(text string) []statement {
	var statements []statement
	var sql strings.Builder
	below := false
	for _, line := range strings.Split(text, "\n") {
		if row, found := strings.CutPrefix(line, "-- "); found && sql.Len() == 0 {
			if below {
				last := &statements[len(statements)-1]
				last.shown = append(last.shown, strings.TrimRight(row, " "))
			}
			continue // a comment elsewhere is a remark
		}
		below = false
		if strings.TrimSpace(line) == "" && sql.Len() == 0 {
			continue
		}
		sql.WriteString(line + "\n")
		if strings.HasSuffix(line, ";") && strings.Count(sql.String(), "$$")%2 == 0 {
			statements = append(statements, statement{sql: sql.String()})
			sql.Reset()
			below = true
		}
	}
	if sql.Len() > 0 {
		statements = append(statements, statement{sql: sql.String(),
			shown: []string{"a semicolon is missing"}})
	}
	return statements
}

// runSQL runs the statements of a block.
func (k *recipeEnv) runSQL(b block) {
	k.Helper()
	for _, s := range statementsOf(b.text) {
		printed := untilShown(strings.Contains(s.sql, "rate_limit_metrics"), s.shown, func() []string {
			return k.rowsOf(k.reader, k.withOwnRoles(s.sql))
		})
		if !matchesPage(printed, s.shown) {
			k.Errorf("%s: %sprints\n%s\nwant, by the page,\n%s", b, s.sql, joinLines(printed),
				joinLines(s.shown))
		}
		if k.reader.PgConn().TxStatus() == 'I' {
			k.awaitPolicyApplied()
		}
	}
}

// rowsOf returns the rows of a statement as the page shows them. A command that changes no row has "0 rows".
func (k *recipeEnv) rowsOf(conn *pgx.Conn, sql string) []string {
	k.Helper()
	results, err := conn.PgConn().Exec(context.Background(), sql).ReadAll()
	var failed *pgconn.PgError
	if errors.As(err, &failed) {
		return []string{"ERROR: " + failed.Message}
	}
	if err != nil || len(results) != 1 {
		k.Fatalf("%s: %d results, error %v, want one result", sql, len(results), err)
	}
	tag := results[0].CommandTag
	if (tag.Insert() || tag.Update() || tag.Delete()) && tag.RowsAffected() == 0 {
		return []string{"0 rows"}
	}
	var rows []string
	for _, row := range results[0].Rows {
		var cells []string
		for _, cell := range row {
			if cell == nil {
				cell = []byte("NULL")
			}
			cells = append(cells, string(cell))
		}
		rows = append(rows, strings.TrimRight(strings.Join(cells, " | "), " "))
	}
	return rows
}
