package command_test

import (
	"flag"
	"os"
	"path/filepath"
	"regexp"
	"strings"
	"testing"

	"github.com/pgratelimit/pg-ratelimit/internal/core/schema"
)

var update = flag.Bool("update", false, "write the transcripts anew")

// varying replaces texts that differ from run to run.
var varying = []struct {
	what *regexp.Regexp
	with string
}{
	{regexp.MustCompile(`prl_[0-9A-Za-z]{33}`), "<KEY>"},
	{regexp.MustCompile(`prl_[0-9A-Za-z]{4}\.\.\.`), "<HINT>"},
	{regexp.MustCompile(`[0-9a-f]{64}`), "<DIGEST>"},
	{regexp.MustCompile(`[0-9a-f]{12}\.\.\.`), "<DIGEST...>"},
	{regexp.MustCompile(`"20[23]\d-\d\d-\d\dT\d\d:\d\d:\d\d(\.\d+)?(Z|[+-]\d\d:\d\d)"`), `"<TIME>"`},
	{regexp.MustCompile(`20[23]\d-\d\d-\d\d \d\d:\d\d:\d\dZ`), "<TIME>"},
	{regexp.MustCompile(`(rate_limit_(?:audit|metrics_minute|metrics_hour))_20\d{6}\b`), "${1}_<DAY>"},
	{regexp.MustCompile(`"seconds_ago": [0-9.e-]+`), `"seconds_ago": <SECONDS>`},
	{regexp.MustCompile(`-?[0-9.]+(ms|s) ago`), "<SECONDS> ago"},
	{regexp.MustCompile(`"retry_after": \d\d\d+\.\d+`), `"retry_after": <SECONDS>`},
	{regexp.MustCompile(`again in [0-9hms.]+`), "again in <TIME>"},
}

// A transcript is a file of commands and of what each prints, on a fresh database. Lines:
//
//	$ rules list     a command, without caddy pg-ratelimit; < KEY gives it the key that was made last
//	| tiers: []      a line of standard input of the next command
//	sql: INSERT …    a command of SQL
//	= SELECT …       a query; its rows are output
//	# …              a comment
//
// All other lines are output. Lines of standard error begin with "stderr: ", and errors with "error: ".
func TestTranscripts(t *testing.T) {
	files, err := filepath.Glob("testdata/*.txt")
	if err != nil || len(files) == 0 {
		t.Fatalf("%d transcripts, error %v; want one or more", len(files), err)
	}
	for i, file := range files {
		if files[i], err = filepath.Abs(file); err != nil {
			t.Fatal(err)
		}
	}
	for _, file := range files {
		t.Run(strings.TrimSuffix(filepath.Base(file), ".txt"), func(t *testing.T) {
			text, err := os.ReadFile(file)
			if err != nil {
				t.Fatal(err)
			}
			got := replay(t, string(text))
			if *update {
				if err := os.WriteFile(file, []byte(got), 0o644); err != nil {
					t.Fatal(err)
				}
				return
			}
			if got != string(text) {
				t.Errorf("the commands print\n%s\nwant\n%s", got, text)
			}
		})
	}
}

// replay runs the commands of a transcript, and returns the transcript with their current output.
func replay(t *testing.T, transcript string) string {
	s := newShell(t, schema.File)
	user := one[string](s, "SELECT session_user::text")
	key := ""
	var got strings.Builder
	for line := range strings.Lines(transcript) {
		line = strings.TrimRight(line, "\n")
		if sql, found := strings.CutPrefix(line, "sql: "); found {
			s.sql(sql)
		} else if query, found := strings.CutPrefix(line, "= "); found {
			line += one[string](s,
				"SELECT coalesce(string_agg(E'\n' || q::text, ''), '') FROM ("+query+") AS q")
		} else if command, found := strings.CutPrefix(line, "$ "); found {
			command, fromKey := strings.CutSuffix(command, " < KEY")
			if fromKey {
				s.stdin = key + "\n"
			}
			out := s.run(words(t, command)...)
			if isKey(out.stdout) {
				key = strings.TrimSpace(out.stdout)
			}
			got.WriteString(line + "\n" + shown(out, user))
			s.stdin = ""
			continue
		} else if input, found := strings.CutPrefix(line, "|"); found {
			s.stdin += strings.TrimPrefix(input, " ") + "\n"
		} else if line != "" && !strings.HasPrefix(line, "#") {
			continue // what the command printed last time
		}
		got.WriteString(line + "\n")
	}
	return got.String()
}

// shown returns the output of a command with varying applied.
func shown(out output, user string) string {
	text := strings.ReplaceAll(out.stdout, "\n\n", "\n.\n") // an empty line belongs to the transcript
	said := out.stderr
	if out.err != nil {
		said = strings.TrimSuffix(said, "Error: "+out.err.Error()+"\n") // printed by cobra
	}
	for line := range strings.Lines(said) {
		text += "stderr: " + line
	}
	if out.err != nil {
		text += "error: " + out.err.Error() + "\n"
	}
	for _, v := range varying {
		text = v.what.ReplaceAllString(text, v.with)
	}
	text = regexp.MustCompile(`\b`+regexp.QuoteMeta(user)+`\b`).ReplaceAllString(text, "<ROLE>")
	// The widths of columns depend on what was replaced.
	return regexp.MustCompile(` +\n`).ReplaceAllString(regexp.MustCompile(`(\S)  +`).ReplaceAllString(text,
		"$1  "), "\n")
}

func isKey(text string) bool { return strings.HasPrefix(text, "prl_") }

// words splits a command as a shell does, with single quotes.
func words(t *testing.T, command string) []string {
	var all []string
	var word strings.Builder
	quoted, begun := false, false
	for _, c := range command {
		switch {
		case c == '\'':
			quoted, begun = !quoted, true
		case c == ' ' && !quoted:
			if begun {
				all = append(all, word.String())
			}
			word.Reset()
			begun = false
		default:
			word.WriteRune(c)
			begun = true
		}
	}
	if quoted {
		t.Fatalf("%s: a quote is missing", command)
	}
	if begun {
		all = append(all, word.String())
	}
	return all
}
