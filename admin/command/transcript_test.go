package command_test

import (
	_ "embed"
	"regexp"
	"strings"
	"testing"

	"github.com/pgratelimit/pg-ratelimit/internal/schema"
	"github.com/pgratelimit/pg-ratelimit/internal/testkit/cluster"
	"github.com/pgratelimit/pg-ratelimit/internal/testkit/golden"
	"github.com/pgratelimit/pg-ratelimit/internal/testkit/sessions"
)

// variableTexts lists patterns of texts that differ from run to run, with their replacements.
//
//go:embed testdata/variable.texts
var variableTexts string

// The commands in each transcript print the output that the transcript contains. A transcript is a file of
// commands and their output, on a fresh database. Its lines are:
//
//	$ rules list     a command, without caddy pg-ratelimit; with < KEY, the last created key is its input
//	| tiers: []      a line of standard input for the next command
//	sql: INSERT …    an SQL command
//	= SELECT …       a query; its rows are output
//	# …              a comment
//
// All other lines are output. Lines of standard error begin with "stderr: ", and errors with "error: ".
func TestTranscripts(t *testing.T) { golden.ReplayAll(t, "testdata/*.txt", runTranscript) }

// runTranscript runs the commands of a transcript, and returns the transcript with their current output.
func runTranscript(t *testing.T, transcript string) string {
	s := newShell(t, schema.File)
	s.dsn = sessions.Reuse(t, s.dsn)
	user := cluster.Query[string](t, s.dsn, "SELECT session_user::text")
	key := ""
	var got strings.Builder
	for line := range strings.Lines(transcript) {
		line = strings.TrimRight(line, "\n")
		if sql, ok := strings.CutPrefix(line, "sql: "); ok {
			s.sql(sql)
		} else if query, ok := strings.CutPrefix(line, "= "); ok {
			line += cluster.Query[string](t, s.dsn,
				"SELECT coalesce(string_agg(E'\n' || q::text, ''), '') FROM ("+query+") AS q")
		} else if command, ok := strings.CutPrefix(line, "$ "); ok {
			command, readsKey := strings.CutSuffix(command, " < KEY")
			if readsKey {
				s.stdin = key + "\n"
			}
			out := s.run(splitWords(t, command)...)
			if isKey(out.stdout) {
				key = strings.TrimSpace(out.stdout)
			}
			got.WriteString(line + "\n" + normalizeOutput(out, user))
			s.stdin = ""
			continue
		} else if input, ok := strings.CutPrefix(line, "|"); ok {
			s.stdin += strings.TrimPrefix(input, " ") + "\n"
		} else if line != "" && !strings.HasPrefix(line, "#") {
			continue // output of an earlier run
		}
		got.WriteString(line + "\n")
	}
	return got.String()
}

// normalizeOutput returns the output of a command, with a placeholder for each of variableTexts and for user.
func normalizeOutput(out output, user string) string {
	text := strings.ReplaceAll(out.stdout, "\n\n", "\n.\n") // an empty line belongs to the transcript
	stderr := out.stderr
	if out.err != nil {
		stderr = strings.TrimSuffix(stderr, "Error: "+out.err.Error()+"\n") // printed by cobra
	}
	for line := range strings.Lines(stderr) {
		text += "stderr: " + line
	}
	if out.err != nil {
		text += "error: " + out.err.Error() + "\n"
	}
	for line := range strings.Lines(variableTexts) {
		pattern, replacement, _ := strings.Cut(strings.TrimSuffix(line, "\n"), " => ")
		text = regexp.MustCompile(pattern).ReplaceAllString(text, replacement)
	}
	text = regexp.MustCompile(`\b`+regexp.QuoteMeta(user)+`\b`).ReplaceAllString(text, "<ROLE>")
	// The widths of columns depend on the replaced texts.
	text = regexp.MustCompile(`(\S)  +`).ReplaceAllString(text, "$1  ")
	return regexp.MustCompile(` +\n`).ReplaceAllString(text, "\n")
}

func isKey(text string) bool { return strings.HasPrefix(text, "prl_") }

// splitWords splits a command as a shell does, with single quotes.
func splitWords(t *testing.T, command string) []string {
	var words []string
	var word strings.Builder
	quoted, inWord := false, false
	for _, c := range command {
		switch {
		case c == '\'':
			quoted, inWord = !quoted, true
		case c == ' ' && !quoted:
			if inWord {
				words = append(words, word.String())
			}
			word.Reset()
			inWord = false
		default:
			word.WriteRune(c)
			inWord = true
		}
	}
	if quoted {
		t.Fatalf("%s: unbalanced quotes", command)
	}
	if inWord {
		words = append(words, word.String())
	}
	return words
}
