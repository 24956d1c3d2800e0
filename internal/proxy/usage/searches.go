package usage

import (
	"encoding/json"
	"strconv"
)

// searches has the places of an answer where searches stand.
type searches struct {
	Output []searchCall `json:"output"` // OpenAI Responses
	Item   searchCall   `json:"item"`
	Inner  struct {
		Output []searchCall `json:"output"`
	} `json:"response"`
	Candidates []struct { // Gemini
		Grounding struct {
			Queries []string `json:"webSearchQueries"`
			Images  []string `json:"imageSearchQueries"`
		} `json:"groundingMetadata"`
	} `json:"candidates"`
	Steps []searchStep `json:"steps"` // Gemini Interactions
	Delta searchStep   `json:"delta"`
}

// searchStep is a call of a search of Gemini Interactions, or another step.
type searchStep struct {
	Type      string `json:"type"`
	Arguments struct {
		Queries []string `json:"queries"`
	} `json:"arguments"`
}

// searchCall is a call of a search, or of another tool.
type searchCall struct {
	ID     string `json:"id"`
	Type   string `json:"type"`
	Status string `json:"status"`
	Action struct {
		Type string `json:"type"`
	} `json:"action"`
}

// searchWord is in each text with searches: it has a type such as web_search_call, or webSearchQueries.
var searchWord = []byte("earch")

// readSearches reads the searches in a text with searchWord: each completed call of a search by its number,
// and each query.
func readSearches(r *Reader, text []byte) {
	if r.searches == nil {
		r.searches = map[string]bool{}
	}
	var s searches
	_ = json.Unmarshal(text, &s) // fields of other types have no searches
	for i, call := range append(append(s.Output, s.Inner.Output...), s.Item) {
		if call.ID == "" && call != s.Item {
			call.ID = strconv.Itoa(i)
		}
		if call.Type == "web_search_call" && call.Status == "completed" && call.ID != "" &&
			(call.Action.Type == "search" || call.Action.Type == "") {
			r.searches[call.ID] = true
		}
	}
	var queries []string
	for i := range s.Candidates {
		grounding := &s.Candidates[i].Grounding
		queries = append(append(queries, grounding.Queries...), grounding.Images...)
	}
	for _, step := range append(s.Steps, s.Delta) {
		if step.Type == "google_search_call" {
			queries = append(queries, step.Arguments.Queries...)
		}
	}
	for _, query := range queries {
		if query != "" {
			r.searches["query "+query] = true
		}
	}
}
