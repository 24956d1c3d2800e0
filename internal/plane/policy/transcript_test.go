package policy_test

import (
	"cmp"
	"context"
	"errors"
	"flag"
	"fmt"
	"net/netip"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/pgratelimit/pg-ratelimit/internal/plane/policy"
	"github.com/pgratelimit/pg-ratelimit/internal/testkit/drivers"
	"github.com/pgratelimit/pg-ratelimit/ratelimit"
)

var update = flag.Bool("update", false, "write the transcripts anew")

// A transcript is a file of changes and of what a policy then decides, by each driver. Lines:
//
//	UPDATE …;               SQL, with further lines that begin with a tab. The policy polls after it.
//	user ann free           makes a user of a tier with the API key "key of ann"
//	ask user=ann path=/a    a request: its user, key, path and address, where _ is a space. An
//	                        unknown key is refused, unless unknown=anonymous.
//	recall key=key_of_ann   the same request by what the policy remembers of the key
//	down, hang, up          the database is gone, does not answer about senders, or is there
//	after 2m                time passes, and the policy polls
//	restart                 a new policy takes the place of the policy
//	reports                 prints what the policy has reported
//	#                       a comment
//
// Lines that begin with "= " are decisions, with "! " errors and reports, and with "- " what the policy says
// it lacks.
func TestTranscripts(t *testing.T) {
	files, err := filepath.Glob("testdata/*.txt")
	if err != nil || len(files) == 0 {
		t.Fatalf("%d transcripts, %v", len(files), err)
	}
	for _, file := range files {
		for driver, open := range drivers.All {
			t.Run(strings.TrimSuffix(filepath.Base(file), ".txt")+"/"+driver, func(t *testing.T) {
				text, err := os.ReadFile(file)
				if err != nil {
					t.Fatal(err)
				}
				s := newSite(t)
				r := &replayed{site: s, middle: &middle{db: open(t, s.dsn)}, timeout: longTime}
				r.restart()
				got := r.replay(string(text))
				if *update {
					err = os.WriteFile(file, []byte(got), 0o644)
				} else if got != string(text) {
					t.Errorf("the policy decides\n%s\nwant\n%s", got, text)
				}
				if err != nil {
					t.Fatal(err)
				}
			})
		}
	}
}

// replayed has the policy of a transcript and its output.
type replayed struct {
	*site
	middle  *middle
	policy  *policy.Policy
	timeout time.Duration // of requests
	out     strings.Builder
	lacks   string
}

func (r *replayed) restart() {
	r.policy = r.policyOn(r.middle, policy.Settings{
		Remember: 100,
		OnApplied: func(_ int64, _ string, problems []string) {
			if lacks := strings.Join(problems, "; "); lacks != r.lacks {
				r.lacks = lacks
				fmt.Fprintf(&r.out, "- %s\n", cmp.Or(lacks, "nothing"))
			}
		}})
	r.poll()
}

// poll polls, and prints an error.
func (r *replayed) poll() {
	if err := r.policy.Refresh(context.Background()); err != nil {
		fmt.Fprintf(&r.out, "! %v\n", err)
	}
}

// replay runs a transcript, and returns it with the current decisions.
func (r *replayed) replay(transcript string) string {
	r.t.Helper()
	lines := slices.DeleteFunc(slices.Collect(strings.Lines(transcript)), func(line string) bool {
		return strings.HasPrefix(line, "= ") || strings.HasPrefix(line, "! ") || strings.HasPrefix(line, "- ")
	}) // without what it printed last time
	for i := 0; i < len(lines); i++ {
		line := lines[i]
		for i+1 < len(lines) && strings.HasPrefix(lines[i+1], "\t") {
			i++
			line += lines[i]
		}
		r.out.WriteString(line)
		words := strings.Fields(line)
		switch {
		case len(words) == 0 || words[0] == "#":
		case words[0] == strings.ToUpper(words[0]):
			r.exec(line)
			r.poll()
		default:
			r.command(words)
		}
	}
	return r.out.String()
}

// command runs a line other than SQL.
func (r *replayed) command(words []string) {
	r.t.Helper()
	switch words[0] {
	case "user":
		r.user(words[1], words[2])
		r.poll()
	case "ask", "recall":
		fmt.Fprintf(&r.out, "= %s\n", strings.TrimSpace(r.ask(words)))
	case "down":
		r.middle.set(func() { r.middle.down = true })
	case "hang":
		hold := make(chan struct{})
		r.middle.set(func() { r.middle.hold = hold })
		r.timeout = 20 * time.Millisecond
		r.t.Cleanup(func() { close(hold) })
	case "up":
		r.middle.set(func() { r.middle.down = false })
		r.awaitAnswers()
		r.poll()
	case "after":
		d, err := time.ParseDuration(words[1])
		if err != nil {
			r.t.Fatal(err)
		}
		r.after(d)
		r.poll()
	case "restart":
		r.restart()
	case "reports":
		fmt.Fprintf(&r.out, "! %s\n", r.reports())
	default:
		r.t.Fatalf("no such command: %s", words)
	}
}

// ask returns a short text of the outcome of a request.
func (r *replayed) ask(words []string) string {
	r.t.Helper()
	facts := policy.Facts{Tier: "anonymous", RejectUnknown: true, Method: "GET", Host: "api.example.com",
		Path: "/", Address: netip.MustParseAddr("198.51.100.1")}
	var key, user string
	for _, word := range words[1:] {
		name, value, _ := strings.Cut(strings.ReplaceAll(word, "_", " "), "=")
		switch name {
		case "key":
			key = value
		case "user":
			user = value
		case "path":
			facts.Path = value
		case "address":
			facts.Address = netip.MustParseAddr(value)
		case "unknown":
			facts.RejectUnknown = value != "anonymous"
		default:
			r.t.Fatalf("no such part of a request: %s", word)
		}
	}
	var o policy.Verdict
	if words[0] == "recall" {
		if !policy.Recall(r.policy, key, &facts, &o) {
			return "not remembered"
		}
		return outcomeText(&o)
	}
	err := r.policy.Evaluate(context.Background(), r.timeout, key, user, &facts, &o)
	if errors.Is(err, ratelimit.ErrUnavailable) || errors.Is(err, ratelimit.ErrTimeout) {
		return outcomeText(&o) + ", no answer about the sender"
	} else if err != nil {
		r.t.Errorf("%s: %v", words, err)
	}
	return outcomeText(&o)
}
