package policy

// MaxValues bounds the keys of a request in one counter, if values of it are several.
const MaxValues = 4

// Distinct returns the different texts of a list, which it does not change.
func Distinct(list []string) []string {
	if len(list) < 2 {
		return list
	}
	var texts []string
	for _, text := range list {
		if !contains(texts, text) {
			texts = append(texts, text)
		}
	}
	return texts
}

// Product returns each text of a list with each value appended, or nil if values are several and make more
// than most texts.
func Product(list, values []string, most int) []string {
	if len(values) != 1 && len(list)*len(values) > most {
		return nil
	}
	var texts []string
	for _, text := range list {
		for _, value := range values {
			texts = append(texts, text+value)
		}
	}
	return Distinct(texts)
}

// KeyValues returns the values of a part of a request that may have the API key: each without a scheme, and
// the key that was accepted, whichever part of the request brought it. accepted is "" without one.
func KeyValues(values []string, accepted string) []string {
	var keys []string
	if accepted != "" {
		keys = append(keys, accepted)
	}
	for _, value := range values {
		if key := Bearer(value); key != "" || accepted == "" {
			keys = append(keys, key)
		}
	}
	return Distinct(keys)
}
