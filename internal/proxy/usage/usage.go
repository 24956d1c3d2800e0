// Package usage reads what a request asks of a language model (ReadPrompts), and what the response has cost,
// as its provider reports this.
//
// Frames divide the body of a response, in parts while they pass, into events: the events of a stream, the
// lines of NDJSON, the elements of an array, or the one text of JSON. A Reader reads events. The tables
// shapes and countNames say where an event reports which number, and the type streamed which fields of an
// event are new text. Of each number, the last report counts, but 0 never replaces more. A stream may end
// before it reports its output, so the Reader also estimates the output that was sent since the last report.
//
// The files, from the top down: frames.go, reader.go, text.go, report.go, searches.go, shapes.go, usage.go;
// prompt.go, media.go.
//
// One goroutine at a time uses Frames, which hold at most one event. Readers and ReadPrompts decode JSON with
// compiled code, because Traefik interprets this package and would take long for each byte.
package usage

import (
	"github.com/pgratelimit/pg-ratelimit/internal/core/option"
)

// Unreported is the number of tokens of input or output that the response has not reported.
const Unreported = -1

// Usage is the result of reading a response.
type Usage struct {
	// Parts is what the request's own model has cost. Its Input and Output may be Unreported.
	Parts option.Parts
	Also  []Share // what other models have cost
	Sent  int64   // an estimate of the output that was sent since the last report of output

	Model       string // the model that answered, or ""
	ServiceTier string // the tier that the response names, in lower case, or ""
	Reported    bool   // the response has reported what it cost
	Stream      bool   // the response is a stream, which may end at any event
	PromptOnly  bool   // the response only counts the tokens of a prompt, or judges it: nothing was generated
	Failed      bool   // the response is an error and nothing else
	Invalid     string // the reason why the body could not be read, or ""
}

// Share is what a model has cost other than the one of the request.
type Share struct {
	Model string
	Parts option.Parts
}

// partsOf divides the numbers of readers into parts. A detail takes at most what the details before it have
// left of its total. One that the reported total has beside the others counts beside them. medium has the
// number that has all of the answer that is not text, or Unreported.
func partsOf(all [][]int64, medium ...int) []option.Parts {
	parts := make([]option.Parts, len(all))
	for k, reported := range all {
		n := make([]int64, numbers)
		for i, value := range reported {
			if value > 0 {
				n[i] = value
			}
		}
		if n[cacheWrite5m]+n[cacheWrite1h] > n[cacheWrite]+n[cacheWriteBeside] {
			n[cacheWriteBeside] = n[cacheWrite5m] + n[cacheWrite1h]
		}
		prompt := n[promptTotal]
		isBeside := prompt == 0 && n[cacheRead]+n[cacheWrite] == 0
		if prompt == 0 {
			prompt = n[promptWithout]
		}
		if n[cacheRead] == 0 {
			n[cacheRead] = n[cacheReadBeside]
		}
		if n[cacheWrite] == 0 {
			n[cacheWrite] = n[cacheWriteBeside]
		}
		if isBeside {
			prompt += n[cacheRead] + n[cacheWrite]
		}
		prompt += n[toolPrompt] + n[imageInBeside]
		output := n[answer] + n[thoughts]
		if reported[promptTotal] < 0 && reported[promptWithout] < 0 && n[total] > output {
			prompt = n[total] - output // embeddings, which may report nothing else
		}
		surplus := n[total] - prompt - output
		if surplus > 0 && surplus != n[reasoning] {
			for _, detail := range []int{connector, audioIn, imageIn, cacheRead, cacheWrite} {
				beside := n[detail]
				if beside > 0 && surplus >= beside && (beside > prompt || beside == surplus) {
					prompt += beside
					surplus -= beside
				}
			}
		}
		if surplus > 0 {
			output += surplus
		}
		if medium[k] >= 0 && reported[medium[k]] < 0 {
			n[medium[k]] = output - n[textOut]
		}
		hasDetails := n[audioOut] != 0 || n[imageOut] != 0
		for _, detail := range n[cacheRead : imageCached+1] {
			hasDetails = hasDetails || detail != 0
		}
		if hasDetails {
			parts[k] = detailsOf(n, prompt, output)
		} else { // without a call, because an interpreter would take long
			parts[k][option.Input], parts[k][option.Output] = prompt, output
		}
		parts[k][option.Search] = n[search] + n[searchBeside]
	}
	return parts
}

// detailsOf divides a prompt and an output into parts.
func detailsOf(n []int64, prompt, output int64) option.Parts {
	var p option.Parts
	left := prompt
	read := least(n[cacheRead], left)
	p[option.AudioCacheRead] = least(n[audioCached], read)
	p[option.CacheRead] = read - p[option.AudioCacheRead]
	left -= read
	written := least(n[cacheWrite], left)
	p[option.CacheWrite1h] = least(n[cacheWrite1h], written)
	p[option.CacheWrite] = written - p[option.CacheWrite1h]
	left -= written
	p[option.AudioInput] = least(n[audioIn]+n[audioInTool]-n[audioCached], left)
	left -= p[option.AudioInput]
	p[option.ImageInput] = least(n[imageIn]+n[imageInTool]+n[imageInBeside]-n[imageCached], left)
	p[option.Input] = left - p[option.ImageInput]
	p[option.AudioOutput] = least(n[audioOut], output)
	left = output - p[option.AudioOutput]
	p[option.ImageOutput] = least(n[imageOut], left)
	p[option.Output] = left - p[option.ImageOutput]
	return p
}

// least returns the lesser number, and at least 0.
func least(a, b int64) int64 {
	if a > b {
		a = b
	}
	if a < 0 {
		return 0
	}
	return a
}

// End reads the rest of bodies, and returns what each has reported. Callers call it once for a Reader. It
// and its steps are loops, because an interpreter would take long for calls.
func End(readers ...*Reader) []Usage {
	frames := make([]*Frames, len(readers))
	for i, r := range readers {
		frames[i] = r.Frames
	}
	var single []*Reader
	var texts [][]byte
	for i, text := range end(frames...) {
		if text != nil {
			single = append(single, readers[i])
			texts = append(texts, text)
		}
	}
	readBodies(single, texts)
	all := make([]Usage, len(readers))
	reported := make([][]int64, len(readers))
	medium := make([]int, len(readers))
	for i, r := range readers {
		all[i] = Usage{Model: r.model, Reported: r.reported, Stream: r.Frames.Stream,
			PromptOnly: r.promptOnly,
			Failed:     r.failed && !r.reported && !r.hasText, Invalid: r.Frames.Invalid}
		u := &all[i]
		if r.tier != "" {
			u.ServiceTier = tierOf(r.tier)
		}
		if u.ServiceTier == "" && r.headerTier != "" {
			u.ServiceTier = tierOf(r.headerTier)
		}
		reported[i] = r.last
		medium[i] = r.medium
		if r.head != nil && !u.Reported {
			reported[i] = r.head
			u.Reported = true
		}
	}
	for i, parts := range partsOf(reported, medium...) {
		u := &all[i]
		r := readers[i]
		n := reported[i]
		u.Parts = parts
		hasInput := n[promptTotal] >= 0 || n[promptWithout] >= 0 || u.Parts.InputTokens() > 0
		hasOutput := n[answer] >= 0 || n[thoughts] >= 0 || u.Parts.OutputTokens() > 0
		if len(r.entries) > 0 {
			u.addEntries(r)
		} else if !hasInput && (hasOutput || !u.Reported) {
			u.Parts[option.Input] = Unreported
		}
		if !hasOutput && (hasInput || !u.Reported) {
			u.Parts[option.Output] = Unreported
		}
		if r.added != nil {
			more := partsOf([][]int64{r.added}, imageOut)
			u.Parts = add(u.Parts, more[0])
		}
		if len(r.searches) > 0 {
			u.Parts[option.Search] = int64(len(r.searches)) + least(n[searchBeside], most)
		}
		u.Sent = int64(r.characters+3) / 4
		if int64(r.events) > u.Sent {
			u.Sent = int64(r.events)
		}
	}
	return all
}

// addEntries takes what several models have cost from entries. One without a model is the request's own, and
// if all have one model, all are.
func (u *Usage) addEntries(r *Reader) {
	several := false
	for _, e := range r.entries {
		several = several || e.model != r.entries[0].model
	}
	searched := u.Parts[option.Search]
	u.Parts = option.Parts{}
	for _, e := range r.entries {
		parts := partsOf([][]int64{e.counts}, Unreported)[0]
		if e.model != "" && several {
			u.Also = append(u.Also, Share{Model: e.model, Parts: parts})
		} else {
			u.Parts = add(u.Parts, parts)
		}
	}
	if u.Parts[option.Search] < searched {
		u.Parts[option.Search] = searched
	}
}

// add returns parts with further ones, none of which is unreported.
func add(parts, more option.Parts) option.Parts {
	for i := range option.PartNames {
		if more[i] > 0 && parts[i] < 0 {
			parts[i] = 0
		}
		parts[i] += more[i]
	}
	return parts
}
