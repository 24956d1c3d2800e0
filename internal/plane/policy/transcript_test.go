package policy_test

import (
	"cmp"
	"errors"
	"fmt"
	"net/netip"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/pgratelimit/pg-ratelimit/internal/plane/policy"
	"github.com/pgratelimit/pg-ratelimit/internal/testkit/drivers"
	"github.com/pgratelimit/pg-ratelimit/internal/testkit/golden"
	"github.com/pgratelimit/pg-ratelimit/ratelimit"
)

// A transcript is a file with changes of a policy and the decisions that follow. The lines are:
//
//	UPDATE …;               SQL, which continues on lines that begin with a tab. Then the policy polls.
//	user ann free           creates a user of a tier with the API key "key of ann"
//	ask user=ann path=/a    a request: its user, key, method, path and address, where _ is a space. An
//	                        unknown key is refused, unless unknown=anonymous, and a request without a
//	                        key is not, unless without=refuse.
//	open anonymous          a site lets requests without a key pass as anonymous; close ends that
//	recall key=key_of_ann   the same request by Recall
//	down, hang, up          the database fails, delays look-ups, or works again
//	after 2m                time passes, and the policy polls
//	restart                 a new policy replaces the policy
//	reports                 prints the reported errors
//	#                       a comment
//
// A line of output begins with "= " for a decision, "! " for an error or a report, and "- " for the problems
// that OnApplied receives.
func TestTranscripts(t *testing.T) {
	golden.ReplayAll(t, "testdata/*.txt", func(t *testing.T, text string) string {
		t.Parallel()
		d := newTestDB(t)
		middle := &controlledDB{db: drivers.All["pgwire"](t, d.dsn)}
		r := &transcriptRun{testDB: d, middle: middle, timeout: testTimeout}
		r.restart()
		return r.replay(text)
	})
}

// transcriptRun holds the policy and the output of a transcript.
type transcriptRun struct {
	*testDB
	middle   *controlledDB
	policy   *policy.Policy
	timeout  time.Duration // of requests
	out      strings.Builder
	problems string
	open     sync.Map // the tiers of Settings.Anonymous
}

func (r *transcriptRun) restart() {
	r.policy = r.newPolicyOn(r.middle, policy.Settings{
		MemoSize: 100, Anonymous: &r.open,
		OnApplied: func(_, _ string, problems []string) {
			if joined := strings.Join(problems, "; "); joined != r.problems {
				r.problems = joined
				fmt.Fprintf(&r.out, "- %s\n", cmp.Or(joined, "nothing"))
			}
		}})
	r.poll()
}

// poll polls and prints an error.
func (r *transcriptRun) poll() {
	if err := r.policy.Refresh(r.t.Context()); err != nil {
		fmt.Fprintf(&r.out, "! %v\n", err)
	}
}

// replay runs a transcript and returns it with the current decisions.
func (r *transcriptRun) replay(transcript string) string {
	r.t.Helper()
	lines := slices.DeleteFunc(slices.Collect(strings.Lines(transcript)), func(line string) bool {
		return strings.HasPrefix(line, "= ") || strings.HasPrefix(line, "! ") || strings.HasPrefix(line, "- ")
	}) // without the previous output
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
func (r *transcriptRun) command(words []string) {
	r.t.Helper()
	switch words[0] {
	case "user":
		r.addUser(words[1], words[2])
		r.poll()
	case "ask", "recall":
		fmt.Fprintf(&r.out, "= %s\n", strings.TrimSpace(r.send(words)))
	case "down":
		r.middle.set(func() { r.middle.down = true })
	case "hang":
		hold := make(chan struct{})
		r.middle.set(func() { r.middle.hold = hold })
		r.timeout = 20 * time.Millisecond
		r.t.Cleanup(func() { close(hold) })
	case "up":
		r.middle.set(func() { r.middle.down = false })
		r.awaitRecovery()
		r.poll()
	case "after":
		d, err := time.ParseDuration(words[1])
		if err != nil {
			r.t.Fatal(err)
		}
		r.advance(d)
		r.poll()
	case "open":
		r.open.Store(words[1], true)
		r.poll()
	case "close":
		r.open.Delete(words[1])
		r.poll()
	case "restart":
		r.restart()
	case "reports":
		fmt.Fprintf(&r.out, "! %s\n", r.reportedErrors())
	default:
		r.t.Fatalf("no such command: %s", words)
	}
}

// send returns a short text of the outcome of a request.
func (r *transcriptRun) send(words []string) string {
	r.t.Helper()
	facts := policy.Facts{DefaultTier: "anonymous", RejectUnknown: true, Method: "GET",
		Host: "api.example.com", Path: "/", Address: netip.MustParseAddr("198.51.100.1")}
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
		case "method":
			facts.Method = value
		case "address":
			facts.Address = netip.MustParseAddr(value)
		case "unknown":
			facts.RejectUnknown = value != "anonymous"
		case "without":
			facts.NeedsKey = value == "refuse"
		default:
			r.t.Fatalf("no such part of a request: %s", word)
		}
	}
	var v policy.Verdict
	if words[0] == "recall" {
		if !policy.Recall(r.policy, key, &facts, &v) {
			return "not remembered"
		}
		return verdictText(&v)
	}
	err := r.policy.Evaluate(r.t.Context(), r.timeout, key, user, &facts, &v)
	if errors.Is(err, ratelimit.ErrUnavailable) || errors.Is(err, ratelimit.ErrTimeout) {
		return verdictText(&v) + ", no answer about the sender"
	} else if err != nil {
		r.t.Errorf("%s: %v", words, err)
	}
	return verdictText(&v)
}
