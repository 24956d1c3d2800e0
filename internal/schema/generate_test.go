package schema_test

import (
	"crypto/sha256"
	"encoding/json"
	"fmt"
	"path/filepath"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"testing"

	"github.com/pgratelimit/pg-ratelimit/internal/core/algorithm"
	"github.com/pgratelimit/pg-ratelimit/internal/schema"
	"github.com/pgratelimit/pg-ratelimit/internal/testkit/golden"
	"github.com/pgratelimit/pg-ratelimit/internal/testkit/sqltest"
	"github.com/pgratelimit/pg-ratelimit/ratelimit"
)

// compactSQL returns the SQL of a file with its pieces, without comments and blank lines, and then what
// commentsSQL makes of the comments. The lines of a statement are joined, up to 240 columns. In the bodies of
// functions, which psql shows, only a line that continues the line before is joined, up to 200 columns.
func compactSQL(t *testing.T, file string) string {
	t.Helper()
	text := pieces.Replace(sqltest.ReadFile(t, file))
	if file[0] != '0' {
		if strings.Contains(text, "\nCOMMENT ON ") {
			t.Fatalf("%s: write COMMENT ON as a comment above its object, see CONTRIBUTING.md", file)
		}
		text += commentsSQL(text)
	}
	sql, last, inBody, quoted, indent := "", "", false, false, 0
	for _, line := range strings.Split(text, "\n") {
		start := strings.TrimSpace(line)
		if start == "" || strings.HasPrefix(start, "--") {
			continue
		}
		edge := strings.Count(line, "$$")%2 == 1
		if !inBody && strings.Contains(line, " -- ") {
			t.Fatalf("%s: a comment at the end of a line outside of a body: %s", file, line)
		}
		joins := !inBody && !edge && last != "" && !strings.HasSuffix(last, ";") && len(last)+len(start) < 240
		depth := len(line) - len(strings.TrimLeft(line, "\t"))
		if inBody && !edge && !quoted {
			// A line that continues the one before is indented by more.
			joins = last != "" && depth > indent && !opens.MatchString(last) &&
				!strings.Contains(last, "--") &&
				len(last)+len(start) < 200
		}
		quoted = quoted != (strings.Count(line, "'")%2 == 1)
		if !joins {
			indent = depth
		}
		switch {
		case joins && strings.HasSuffix(last, "'") && strings.HasPrefix(start, "'"):
			// Two literals are one only if they are on two lines.
			sql = sql[:len(sql)-1] + start[1:]
			last = last[:len(last)-1] + start[1:]
		case joins:
			sql += " " + start
			last += " " + start
		case sql == "":
			sql, last = line, line
		default:
			sql += "\n" + line
			last = line
		}
		inBody = inBody != edge
		if edge || quoted {
			last = ""
		}
	}
	return sql + "\n"
}

// pieces has text that Go and SQL have in common. {processes} stands for the table of processes' names.
var pieces = strings.NewReplacer("{links}", ratelimit.TimeZoneLinks, "{node_is_live}", schema.NodeIsLive,
	"{midnight}", algorithm.FirstMomentSQL("$1"),
	"{is_live}", algorithm.LiveSQL, "{live_held}", algorithm.LiveHeldSQL,
	"{holders}", algorithm.HoldersSQL, "{live_slots}",
	algorithm.Of(&ratelimit.Limit{Algorithm: ratelimit.InFlight}).SQL.PeekReturned)

// opens matches the end of a line after which a block is indented.
var opens = regexp.MustCompile(`(;|\b(BEGIN|THEN|LOOP|ELSE|DECLARE|EXCEPTION))$`)

// first has the functions that constraints of numbered files call. again has all that is made again: other
// functions, views, triggers and comments, in an order in which each finds what it needs.
var (
	first = []string{"tables/lists.sql"}
	again = []string{"answers/uncomment.sql", "changes/grants.sql", "tables/amounts.sql", "answers/usage.sql",
		"tables/notices.sql", "tables/ledger.sql", "tables/totals.sql", "answers/ledger.sql",
		"changes/forget.sql", "tables/nodes.sql", "tables/lost.sql", "answers/proxies.sql",
		"tables/partitions.sql", "tables/metrics.sql", "answers/traffic.sql", "tables/record.sql",
		"tables/upkeep.sql", "answers/key_name.sql", "answers/history.sql", "tables/people.sql",
		"tables/prices.sql", "changes/amounts.sql", "tables/known_zone.sql", "tables/zones.sql",
		"tables/changes.sql", "tables/override_amounts.sql", "tables/usable.sql",
		"tables/renames.sql", "tables/triggers.sql", "changes/functions.sql", "changes/prices.sql",
		"changes/corrections.sql", "tables/proxy_functions.sql",
		"answers/policy.sql", "answers/spent.sql", "answers/states.sql", "changes/people.sql",
		"changes/rules.sql", "changes/document.sql", "answers/comments.sql", "end.sql"}
	// others are not part of a migration: they read the state, are the migration, or are for Citus.
	others = []string{"state.sql", "migration.sql", "tables/shards.sql"}
)

var (
	// made matches the name of a table that a numbered file creates, and dropped one that it drops.
	made    = regexp.MustCompile(`CREATE (?:UNLOGGED )?TABLE (?:IF NOT EXISTS )?(rate_limit_[a-z_]+)\s`)
	dropped = regexp.MustCompile(`DROP TABLE (rate_limit_[a-z_]+)`)
	// heading matches a line of a numbered file: the oldest program that may go on after it, a column by
	// which only programs from this number on match rules, a command that a constraint refuses, or for steps
	// the condition that they are done.
	heading = regexp.MustCompile(`(?m)^-- (oldest program|restricts|refuses|done): (.+)$`)
	dollars = regexp.MustCompile(`\$[a-z_]*\$`)
)

// commands returns the SQL of files with a line --; between two commands.
func commands(t *testing.T, files ...string) string {
	t.Helper()
	sql, quote := "", ""
	for _, file := range files {
		for line := range strings.Lines(compactSQL(t, file)) {
			sql += line
			for _, tag := range dollars.FindAllString(line, -1) {
				if quote == "" {
					quote = tag
				} else if quote == tag {
					quote = ""
				}
			}
			if strings.Contains(line, "BEGIN ATOMIC") {
				quote = "END;\n"
			}
			if quote == "END;\n" && strings.HasSuffix(line, quote) {
				quote = ""
			}
			if quote == "" && strings.HasSuffix(line, ";\n") {
				sql += "--;\n"
			}
		}
	}
	return sql
}

// numbered is what the numbered files say together. A file has the name 0002_purpose.sql. Its part for the
// tables of shards, 0002_purpose.shards.sql, runs before it, in each shard too. 0002_purpose.steps.sql has
// commands that only the command migrate runs, one by one, after the others.
type numbered struct {
	number, oldest       int
	goFiles, sql, shards string
	goConstants          string   // a constant for each file
	inUpgrade            []string // pairs: the SQL of a file in Upgrade, and its constant there
	facts                string   // the tables, and the columns that restrict rules
	tables               []string
	restricts            map[string]int
}

// add adds a file with its SQL, divided by commands.
func (n *numbered) add(file, text, sql string) {
	n.number, _ = strconv.Atoi(file[:4])
	done := ""
	for _, line := range heading.FindAllStringSubmatch(text, -1) {
		switch line[1] {
		case "oldest program":
			n.oldest, _ = strconv.Atoi(line[2])
		case "restricts":
			n.restricts[line[2]] = n.number
		case "done":
			done = line[2]
		}
	}
	for _, found := range made.FindAllStringSubmatch(text, -1) {
		if !slices.Contains(n.tables, found[1]) {
			n.tables = append(n.tables, found[1])
		}
	}
	for _, found := range dropped.FindAllStringSubmatch(text, -1) {
		n.tables = slices.DeleteFunc(n.tables, func(name string) bool { return name == found[1] })
	}
	name := "sql" + strings.NewReplacer(".sql", "", ".", "").Replace(file)
	n.goConstants += fmt.Sprintf("const %s = `%s`\n\n", name, sql)
	n.inUpgrade = append(n.inUpgrade, "$file$"+sql+"$file$", "$file$` + "+name+" + `$file$")
	n.goFiles += fmt.Sprintf("\t{%d, %q, %q, \"\\n\" + %s},\n", n.number, file, done, name)
	if done == "" {
		also := ""
		if strings.HasSuffix(file, ".shards.sql") {
			also = " OR state.lacks"
		}
		n.sql = fmt.Sprintf("%s,\n\t\tCASE WHEN state.number < %d%s THEN $file$%s$file$ END", n.sql, n.number,
			also, sql)
	}
	facts, _ := json.Marshal(map[string]any{"restricts": n.restricts, "tables": n.tables})
	n.facts = string(facts)
}

// state returns the query of state.sql.
func (n *numbered) state(t *testing.T) string {
	t.Helper()
	return strings.NewReplacer("{about}", schema.About, "{whole}", schema.Whole, "{facts}", n.facts).Replace(
		compactSQL(t, "state.sql"))
}

// upgrade returns the migration to a revision, of which repeated is made again.
func (n *numbered) upgrade(t *testing.T, revision int, repeated string) string {
	t.Helper()
	return strings.NewReplacer("{state}", n.state(t), "{first}", commands(t, first...), ", {numbered}", n.sql,
		"{repeatable}", repeated, "{facts}", n.facts, "{number}", strconv.Itoa(n.number),
		"{revision}", strconv.Itoa(revision), "{oldest}", strconv.Itoa(n.oldest),
	).Replace(compactSQL(t, "migration.sql"))
}

// readNumbered reads the numbered files.
func readNumbered(t *testing.T, files []string) *numbered {
	t.Helper()
	n := &numbered{restricts: map[string]int{}}
	for _, file := range files {
		if file[0] != '0' {
			continue
		}
		if number, err := strconv.Atoi(file[:4]); err != nil || number < n.number || number > n.number+1 {
			t.Fatalf("%s: must have the number %d", file, n.number+1)
		}
		n.add(file, sqltest.ReadFile(t, file), commands(t, file))
		if strings.HasSuffix(file, ".shards.sql") {
			n.shards += compactSQL(t, file)
		}
	}
	return n
}

// generateGo returns a Go file with the migration.
func generateGo(t *testing.T, files []string, revision int) string {
	n := readNumbered(t, files)
	upgrade := strings.NewReplacer(n.inUpgrade...).Replace(n.upgrade(t, revision, commands(t, again...)))
	return fmt.Sprintf(`// Code generated from the .sql files by go generate. DO NOT EDIT.
//
// Comments are in the .sql files alone.

package schema

const (
	number   = %d
	revision = %d
)

const stateSQL = `+"`\n%s`"+`

%s// Upgrade creates all tables, or upgrades tables of an older program in place, and keeps their rows. It
// changes nothing in tables of this program or of a newer one. It is one command, and can run at any time and
// in any number of processes.
const Upgrade = `+"`\n%s`"+`

// ShardTables makes the tables of a shard, or upgrades them, in the first schema of the search_path.
const ShardTables = `+"`\n%s`"+`

// Shards creates the functions that the shards share, and prevents programs from counting in the tables
// outside the shards.
const Shards = `+"`\n%s`"+`

// Numbered has the numbered files, in their order.
var Numbered = []NumberedFile{
%s}
`, n.number, revision, n.state(t), n.goConstants, upgrade, n.shards,
		compactSQL(t, "tables/shards.sql"), n.goFiles)
}

// sqlFiles returns the names of the .sql files outside testdata.
func sqlFiles(t *testing.T) []string {
	t.Helper()
	files, err := filepath.Glob("*.sql")
	rooms, err2 := filepath.Glob("*/*.sql")
	if err != nil || err2 != nil || len(files)+len(rooms) < 20 {
		t.Fatalf(".sql files: got %q, %v, %v, want at least 20", append(files, rooms...), err, err2)
	}
	return slices.DeleteFunc(append(files, rooms...), func(file string) bool {
		return strings.HasPrefix(file, "testdata")
	})
}

// checkDigests compares digests.txt with the .sql files, and returns the last revision. The file has a line
// for each numbered file, in their order, and one for each revision: all SQL after a change.
func checkDigests(t *testing.T, files []string) (revision int) {
	t.Helper()
	numberedFiles := slices.DeleteFunc(slices.Clone(files), func(file string) bool { return file[0] != '0' })
	golden.Replay(t, "digests.txt", func(text string) string {
		var known []string // of numbered files
		last := ""
		for line := range strings.Lines(text) {
			_, err := fmt.Sscanf(line, "revision %d %s", &revision, &last)
			if err != nil && line[0] != '/' {
				known = append(known, strings.TrimSpace(line))
			}
		}
		if last == "" {
			t.Fatal("digests.txt has no revision: take the file of the other branch, and generate again. " +
				"No database is upgraded to a lower revision.")
		}
		all := sha256.New()
		n := 0
		for _, file := range slices.Concat(numberedFiles, first, again, others) {
			sql := compactSQL(t, file)
			all.Write([]byte(sql))
			if file[0] != '0' {
				continue
			}
			line := fmt.Sprintf("%s %x", file[:4], sha256.Sum256([]byte(sql)))
			switch {
			case n < len(known) && known[n] != line:
				t.Fatalf("%s has changed: databases have run it: write a file with the next number", file)
			case n >= len(known) && len(known) > 0 && file[:4] <= known[len(known)-1][:4]:
				t.Fatalf("%s: must have the next number: databases have run files of this one", file)
			case n >= len(known):
				text += line + "\n"
			}
			n++
		}
		if n < len(known) {
			t.Fatalf("%d numbered files are missing: a database may need them", len(known)-n)
		}
		if digest := fmt.Sprintf("%x", all.Sum(nil)); digest != last {
			revision++
			text += fmt.Sprintf("revision %d %s\n", revision, digest)
		}
		return text
	})
	return revision
}

// generated.go has copies of the .sql files, because interpreted packages cannot embed files. digests.txt
// gives each change of a file a new revision, so that databases get it.
func TestGeneratedFileIsCurrent(t *testing.T) {
	files := sqlFiles(t)
	revision := checkDigests(t, files)
	golden.Check(t, "generated.go", generateGo(t, files, revision))
}

// Each .sql file without a number is in one list.
func TestNoSQLFileIsLeftOut(t *testing.T) {
	listed := slices.Sorted(slices.Values(slices.Concat(first, again, others)))
	files := slices.DeleteFunc(sqlFiles(t), func(file string) bool { return file[0] == '0' })
	if slices.Sort(files); !slices.Equal(files, listed) {
		t.Errorf("the lists have %q, and the files are %q", listed, files)
	}
}
