package clients

import (
	"net/http"
	"slices"
	"strconv"
	"strings"
	"sync"
	"testing"
	"time"
)

// most has the largest number of requests that a client sends by default, with the first one.
var most = map[string]int{"openai-node": 3, "anthropic-sdk": 3, "ai-openai": 3, "ai-anthropic": 3,
	"google-genai": 1, "openai-go v1": 3, "openai-go v3": 3, "go-openai": 1, "got": 3, "axios-retry": 4,
	"go-retryablehttp": 5, "urllib3": 4, "curl": 3, "node-fetch": 1, "browser": 1}

// knowsShouldRetry has the clients that obey X-Should-Retry.
var knowsShouldRetry = []string{"openai-node", "anthropic-sdk", "openai-go v1", "openai-go v3"}

// ofModels has the other clients whose errors have the status and the message of a refusal. Those that begin
// with ai- wait for Retry-After only up to a minute, and retry all the same.
var ofModels = []string{"go-openai", "ai-openai", "ai-anthropic", "google-genai", "node-fetch"}

// typesOfAnthropic has the types of errors in Anthropic's SDK, and codesOfOpenAI the codes and types in those
// of OpenAI, by kind.
var (
	typesOfAnthropic = map[string]string{"budget": "rate_limit_error", "paid": "billing_error",
		"down": "api_error"}
	codesOfOpenAI = map[string]string{"budget": "insufficient_quota insufficient_quota",
		"paid": "insufficient_quota insufficient_quota", "down": "service_unavailable api_error"}
)

// patience bounds the wait for a client. A client of ai waits six seconds in all if it is not told to.
const patience = 20 * time.Second

// report describes the end of a client's request: passed, waits, or refused with the client's error.
type report struct{ Client, Kind, End string }

// A client stops at once, or waits for Retry-After, or without Retry-After sends at most its default number
// of requests. No timer of a client overflows. SDKs of language models report the status, and what the
// refusal says: the limit, when a budget opens, or the model without a price.
func TestClientsUnderstandRefusals(t *testing.T) { inBoth(t, understand) }

func understand(t *testing.T, f *front, url string) {
	reports := make(chan report, 300)
	var running sync.WaitGroup
	for _, run := range []func(t *testing.T, url string, to chan<- report){runNode, runPython, runGo, runCurl,
		runBrowser} {
		running.Go(func() { run(t, url, reports) })
	}
	running.Wait()
	close(reports)
	reported := map[string]int{}
	for r := range reports {
		reported[r.Client]++
		f.check(r)
	}
	for client := range most {
		if reported[client] != len(kinds) {
			t.Errorf("%s reported %d requests, want %d", client, reported[client], len(kinds))
		}
	}
}

// check checks what a client did.
func (f *front) check(r report) {
	t := f.t
	f.mu.Lock()
	defer f.mu.Unlock()
	attempts := f.attempts[r.Client+" "+r.Kind]
	t.Log(r, len(attempts))
	if len(attempts) == 0 || len(attempts) > most[r.Client] {
		t.Errorf("%v: %d requests, want 1 to %d", r, len(attempts), most[r.Client])
		return
	}
	for i, a := range attempts[1:] {
		before := attempts[i]
		told, _ := strconv.Atoi(before.retryAfter)
		if strings.HasPrefix(r.Client, "ai-") && told > 60 {
			told = 0
		}
		if wait := a.at.Sub(before.answered); wait < time.Duration(told)*time.Second-100*time.Millisecond {
			t.Errorf("%v: asked again after %v, told %d s", r, wait, told)
		}
		if before.shouldRetry == "false" && slices.Contains(knowsShouldRetry, r.Client) {
			t.Errorf("%v: asked again, told not to", r)
		}
	}
	last := attempts[len(attempts)-1]
	want := "refused"
	if last.status == http.StatusOK {
		want = "passed"
	}
	stops := last.shouldRetry == "false" && slices.Contains(knowsShouldRetry, r.Client)
	if r.End == "waits" && !stops && (last.status == 0 || last.retryAfter != "") {
		return
	}
	if word, _, _ := strings.Cut(r.End, " "); word != want {
		t.Errorf("%v: want %s", r, want)
	}
	if want == "refused" {
		f.checkError(r, attempts)
	}
}

// checkError checks the error of a client of language models after a refusal.
func (f *front) checkError(r report, attempts []attempt) {
	if !slices.Contains(knowsShouldRetry, r.Client) && !slices.Contains(ofModels, r.Client) {
		return
	}
	words := []string{strconv.Itoa(attempts[len(attempts)-1].status)}
	switch r.Kind {
	case "minute", "month", "never", "flight":
		words = append(words, "limit "+r.Kind)
	case "budget", "paid":
		words = append(words, "Budget used up: "+r.Kind+"/month opens on 20")
	case "price":
		words = append(words, "has no price")
		if r.Client != "node-fetch" {
			words = append(words, `he model "`)
		}
	}
	if r.Client == "anthropic-sdk" {
		words = append(words, typesOfAnthropic[r.Kind])
	} else if strings.Contains(r.Client, "openai") && !strings.HasPrefix(r.Client, "ai-") {
		words = append(words, codesOfOpenAI[r.Kind])
	}
	plain := strings.ReplaceAll(r.End, `\`, "") // some have the JSON of the body
	for _, word := range words {
		if !strings.Contains(plain, word) {
			f.t.Errorf("%v: want %q", r, words)
			break
		}
	}
	once := r.Kind == "paid" || r.Kind == "price" || r.Kind == "banned"
	if once && len(attempts) > 1 {
		f.t.Errorf("%v: %d requests, want one", r, len(attempts))
	}
}
