package usage

import (
	"encoding/json"
	"math"
	"regexp"
	"strings"
)

// most is the highest number that is read.
const most = 1 << 53

// entry is an element of entries.
type entry struct {
	model  string
	counts []int64
}

// none has numbers that are not reported. It is copied without a call, because an interpreter would take long
// for each.
var none = unreported()

func unreported() []int64 {
	n := make([]int64, numbers)
	for i := range n {
		n[i] = Unreported
	}
	return n
}

// inHeaders has the numbers in headers of a response.
var inHeaders = []struct {
	name   string
	number int // as in shape
}{{"X-Amzn-Bedrock-Input-Token-Count", promptWithout}, {"X-Amzn-Bedrock-Output-Token-Count", answer},
	{"X-Amzn-Bedrock-Cache-Read-Input-Token-Count", cacheReadBeside},
	{"X-Amzn-Bedrock-Cache-Write-Input-Token-Count", cacheWriteBeside}}

// readReports reads what an event of each reader reports. It walks through the members of shapes, without a
// call for each: of an object the member of a name, and under the name 0 the first element of an array.
func readReports(readers []*Reader, bodies []map[string]interface{}) {
	direct, nested := make([][]int64, len(readers)), make([][]int64, len(readers))
	var first, more []map[string]interface{} // objects of counts: the first one of an event, and others
	var intoFirst, intoMore [][]int64        // where their numbers belong: elements of nested
	for k, r := range readers {
		event := bodies[k]
		direct[k] = append([]int64(nil), none...)
		nested[k] = append([]int64(nil), none...)
		found := 0
		for i := range shapes {
			m := &shapes[i]
			top := event[m.name]
			if top == nil {
				continue
			}
			for j, path := range m.paths {
				at := top
				for _, name := range path {
					if _, ok := at.(map[string]interface{}); ok {
						at = at.(map[string]interface{})[name]
					} else if _, ok := at.([]interface{}); ok && name == "0" && len(at.([]interface{})) > 0 {
						at = at.([]interface{})[0]
					} else {
						at = nil
					}
				}
				if at == nil {
					continue
				}
				is := m.numbers[j]
				switch {
				case is == counts:
					if _, ok := at.(map[string]interface{}); !ok {
						continue
					}
					if found++; found == 1 {
						first = append(first, at.(map[string]interface{}))
						intoFirst = append(intoFirst, nested[k])
					} else {
						more = append(more, at.(map[string]interface{}))
						intoMore = append(intoMore, nested[k])
					}
				case is < 0:
					readOther(r, is, at)
				case direct[k][is] < 0:
					if number := numberOf(at); number >= 0 && number <= most {
						direct[k][is] = int64(number)
					}
				}
			}
		}
	}
	readCounts(first, intoFirst)
	for i := range more {
		one := append([]int64(nil), none...)
		readCounts(more[i:i+1], [][]int64{one})
		for is, number := range one {
			if intoMore[i][is] < 0 {
				intoMore[i][is] = number
			}
		}
	}
	merge(readers, bodies, nested, direct)
}

// readOther reads a value of an event that is no number.
func readOther(r *Reader, is int, value interface{}) {
	switch is {
	case added:
		if object := objectOf(value); object != nil {
			r.added = append([]int64(nil), none...)
			readCounts([]map[string]interface{}{object}, [][]int64{r.added})
		}
	case entries:
		if list := listOf(value); len(list) > 0 {
			r.entries = readEntries(list)
		}
	case failed:
		r.failed = r.failed || isError(value)
	case free:
		r.free = true
	case model:
		if text := textOf(value); text != "" {
			r.model = text
		}
	case tier, speed:
		if text := tierOf(textOf(value)); text != "" && (is == tier || text != "standard") {
			r.tier = text
		}
	}
}

// readCounts reads the numbers of objects of counts, each into its own.
func readCounts(all []map[string]interface{}, into [][]int64) {
	for k, object := range all {
		n := into[k]
		if object["billed_units"] != nil { // Cohere bills other numbers than those of its tokens
			object = map[string]interface{}{"billed_units": object["billed_units"]}
		}
		objects := []map[string]interface{}{object}
		paths := []string{""}
		for i := 0; i < len(objects); i++ {
			for name, value := range objects[i] {
				path := paths[i] + name
				if _, ok := value.(float64); ok {
					number := value.(float64)
					is := countNames[path]
					whole := math.Ceil(number)
					if is != noNumber && whole > float64(n[is]) && whole <= most && number >= 0 &&
						(number == whole || is == duration) {
						n[is] = int64(whole)
					}
					continue
				}
				if _, ok := value.(map[string]interface{}); ok {
					objects = append(objects, value.(map[string]interface{}))
					paths = append(paths, path+".")
				} else if list := listOf(value); len(list) > 0 && objectOf(list[0]) != nil {
					objects = append(objects, sumsOf(list))
					paths = append(paths, path+".")
				}
			}
		}
	}
}

// sumsOf returns the sums of an array of numbers by their modality, time or type.
func sumsOf(list []interface{}) map[string]interface{} {
	sums := map[string]float64{}
	all := map[string]interface{}{}
	for _, one := range list {
		element := objectOf(one)
		for _, key := range []string{"modality", "ttl", "type"} {
			of := strings.ToUpper(textOf(element[key]))
			if of == "" {
				continue
			}
			for _, name := range []string{"tokenCount", "tokens", "inputTokens", "token_count",
				"search_query_count", "count"} {
				if number := numberOf(element[name]); number >= 0 {
					sums[of] += number
					break
				}
			}
			all[of] = sums[of]
			break
		}
	}
	return all
}

// readEntries reads counts that each have a model, or are those of the request's own model.
func readEntries(list []interface{}) []entry {
	var all []entry
	for _, one := range list {
		element := objectOf(one)
		e := entry{counts: append([]int64(nil), none...), model: textOf(element["model"])}
		inner := objectOf(element["usage"])
		if inner == nil {
			inner = element
		}
		readCounts([]map[string]interface{}{inner}, [][]int64{e.counts})
		all = append(all, e)
	}
	return all
}

// objectOf returns a value that is an object, or nil.
func objectOf(value interface{}) map[string]interface{} {
	object, _ := value.(map[string]interface{})
	return object
}

// listOf returns a value that is an array, or nil.
func listOf(value interface{}) []interface{} {
	list, _ := value.([]interface{})
	return list
}

// numberOf returns a value that is a number, or -1.
func numberOf(value interface{}) float64 {
	if number, ok := value.(float64); ok {
		return number
	}
	return -1
}

// textOf returns a value that is a text, or "".
func textOf(value interface{}) string {
	text, _ := value.(string)
	return text
}

// isError reports whether a value says that there is an error.
func isError(value interface{}) bool {
	text, _ := json.Marshal(value) // it never fails
	switch string(text) {
	case "null", "{}", "[]", `""`, "false", "0", "-0":
		return false
	}
	return true
}

// problem has the members of errors that have no member error: 2 for those that describe the error.
var problem = byName(map[int]string{2: "detail details message msg error_msg error_message errorMessage",
	1: "code error_code errorCode status statusCode status_code type __type title instance param object " +
		"success request_id requestId trace_id timestamp path"})

// isProblem reports whether a body only describes an error: it has nothing else, and no code of success.
func isProblem(fields map[string]json.RawMessage) bool {
	described := false
	for name, field := range fields {
		switch string(field) {
		case "null":
			continue
		case "0", "200", `"0"`, `"200"`, `"ok"`, `"success"`, "true", `""`:
			return false
		}
		if problem[name] == 0 {
			return false
		}
		described = described || problem[name] == 2
	}
	return described
}

// tierOf returns the name of a tier, or "" for one that names nothing.
func tierOf(text string) string {
	text = strings.TrimPrefix(strings.ToLower(strings.TrimSpace(text)), "on_demand_")
	switch text {
	case "auto", "traffic_type_unspecified", "unspecified":
		return ""
	case "default", "on_demand":
		return "standard"
	case "fast":
		return "priority"
	}
	return text
}

// merge takes over the numbers of an event of each reader: nested, and those of direct that nested lacks.
// 0 never replaces more. Numbers that are all 0 are a report only in a whole body without text: see zero.
func merge(readers []*Reader, bodies []map[string]interface{}, nested, direct [][]int64) {
	for k, r := range readers {
		n := nested[k]
		event := bodies[k]
		if event["eval_count"] != nil && direct[k][promptTotal] < 0 {
			direct[k][promptTotal] = 0 // Ollama leaves out a prompt that it has not computed
		}
		kind := ""
		if event["type"] != nil {
			kind = textOf(event["type"])
		}
		switch {
		case strings.HasSuffix(kind, "rror"): // such as conversation.response.error, BadRequestError
			r.failed = true
		case kind == "speech.audio.done":
			r.medium = audioOut
		case kind == "" && event["data"] != nil || strings.HasPrefix(kind, "image_"):
			r.medium = imageOut
		}
		highest := int64(Unreported)
		for i, number := range direct[k] {
			if n[i] < 0 {
				n[i] = number
			}
			if n[i] > highest {
				highest = n[i]
			}
		}
		if highest <= 0 {
			r.zero = r.zero || highest == 0
			continue
		}
		r.reported = true
		for i, number := range n {
			if number > 0 || number == 0 && r.last[i] < 0 {
				r.last[i] = number
			}
		}
		if n[total] < 0 && (n[promptTotal] > 0 || n[promptWithout] > 0 || n[answer] > 0) {
			r.last[total] = Unreported // it was the one of other numbers
		}
		if n[answer] > 0 || n[thoughts] > 0 || n[duration] > 0 ||
			n[answer] < 0 && n[promptTotal] >= 0 && n[total] > n[promptTotal] {
			r.events = 0
			r.characters = 0
		}
	}
}

// answers has the members of a whole body that hold an answer, if it has one.
var answers = strings.Fields("choices candidates content output message response text completion " +
	"generation generations outputs results result data")

// said matches JSON that has text, calls, pictures or sound of a model.
var said = regexp.MustCompile(`^"[^"]|"(?:content|text|refusal|reasoning|reasoning_content|thinking|` +
	`arguments|transcript|outputText|generated_text|data|b64_json|url)"\s*:\s*"[^"]|` +
	`"(?:args|input)"\s*:\s*\{\s*"`)

// saysText reports whether a whole body has an answer of a model.
func saysText(fields map[string]json.RawMessage) bool {
	for _, name := range answers {
		if field := fields[name]; said.Match(field) && (name != "message" || field[0] == '{') {
			return true
		}
	}
	return false
}

// onlyCounts reports whether a JSON body without usage only counts the tokens of a prompt.
func onlyCounts(fields map[string]json.RawMessage) bool {
	for _, name := range append([]string{"usage", "usageMetadata", "error"}, answers...) {
		if fields[name] != nil {
			return false
		}
	}
	return fields["input_tokens"] != nil || fields["totalTokens"] != nil || fields["inputTokens"] != nil ||
		fields["tokens"] != nil
}
