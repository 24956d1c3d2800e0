package page

import (
	"encoding/json"
	"fmt"
	"net/http"
	"slices"
	"time"
)

const (
	// mostStreams is how many streams are open at the same time.
	mostStreams = 64
	// streamPing is the time between two signs of life of a stream.
	streamPing = 15 * time.Second
	// streamTimeout is for one write: a client that reads no more is let go.
	streamTimeout = 10 * time.Second
	// stateTimeout is for the first look at the registry.
	stateTimeout = tickTimeout + time.Second
)

// sectionNames are the sections in the order in which they are sent.
var sectionNames = []string{"banner", "proxies", "traffic", "top", "near", "limits", "bans", "changes"}

// serveEvents sends each section that has changed, until the client leaves.
func (s *Server) serveEvents(w http.ResponseWriter, r *http.Request) {
	c := s.collector
	w.Header().Set("Content-Type", "text/event-stream")
	if r.Method == http.MethodHead {
		return
	}
	select {
	case s.streams <- struct{}{}:
		defer func() { <-s.streams }()
	default:
		(&failure{http.StatusServiceUnavailable, "", fmt.Sprintf("%d pages are open: close one", mostStreams)}).write(w)
		return
	}
	defer c.use()()
	out := http.NewResponseController(w)
	w.Header().Set("X-Accel-Buffering", "no")
	_, _ = fmt.Fprint(w, "retry: 2000\n\n")
	sent := map[string]int64{}
	ping := time.NewTicker(streamPing)
	defer ping.Stop()
	for {
		text, changed := c.news(sent)
		_ = out.SetWriteDeadline(time.Now().Add(streamTimeout)) // a writer without deadlines is closed with its connection
		if _, err := w.Write(text); err != nil || out.Flush() != nil {
			return
		}
		select {
		case <-changed:
		case <-ping.C:
			if _, err := fmt.Fprint(w, ":\n\n"); err != nil {
				return
			}
		case <-r.Context().Done():
			return
		case <-c.closing.Done():
			return
		}
	}
}

// news are the events of the sections that have another version than what was sent, and what is closed at the
// next change.
func (c *collector) news(sent map[string]int64) (events []byte, changed <-chan struct{}) {
	c.mu.Lock()
	defer c.mu.Unlock()
	for _, name := range sectionNames {
		if now := c.sections[name]; now != nil && now.version != sent[name] {
			sent[name] = now.version
			events = append(events, "event: "+name+"\ndata: "...)
			events = append(events, now.text...)
			events = append(events, "\n\n"...)
		}
	}
	return events, c.changed
}

// state returns all sections, or those that are named. It waits for the first look at the registry.
func (s *Server) state(r *http.Request, names ...string) (map[string]json.RawMessage, error) {
	c := s.collector
	defer c.use()()
	timeout := time.After(stateTimeout)
	for {
		all := map[string]json.RawMessage{}
		c.mu.Lock()
		for name, now := range c.sections {
			if len(names) == 0 || slices.Contains(names, name) {
				all[name] = json.RawMessage(now.text)
			}
		}
		// Sections may be left from when the collector ran before.
		ready, changed := len(all) > 0 && (len(c.proxies) > 0 && c.asking == 0 || time.Since(c.began) > stateTimeout || !c.up), c.changed
		down := !c.up && len(c.sections) < len(sectionNames)
		c.mu.Unlock()
		if down && len(names) > 0 {
			return nil, &downError{errNoAnswer}
		}
		if ready {
			return all, nil
		}
		select {
		case <-changed:
		case <-timeout:
			if len(all) == 0 {
				return nil, &downError{errNoAnswer}
			}
			return all, nil
		case <-r.Context().Done():
			return nil, r.Context().Err()
		}
	}
}
