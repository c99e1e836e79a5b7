package main

import (
	"fmt"
	"path/filepath"
	"time"

	"github.com/anishathalye/porcupine"
)

// checkLimit is how long the check of one history may take. Histories are short, so that it takes milliseconds.
const checkLimit = time.Minute

// check checks the history of each key in a window, and returns their number. If one is not linearizable, the error
// names the file that shows it.
func check(checked window, directory, name string) (int, error) {
	histories := model.Partition(checked.operations)
	for _, history := range histories {
		key := history[0].Input.(input).key
		switch porcupine.CheckOperationsTimeout(model, history, checkLimit) {
		case porcupine.Ok:
		case porcupine.Unknown:
			return 0, fmt.Errorf("%s: no result for the history of %s within %v", name, key, checkLimit)
		case porcupine.Illegal:
			_, info := porcupine.CheckOperationsVerbose(model, history, checkLimit)
			path := filepath.Join(directory, fmt.Sprintf("%s-%d.html", name, checked.number))
			if err := porcupine.VisualizePath(model, info, path); err != nil {
				return 0, err
			}
			return 0, violation{fmt.Sprintf("%s: the history of %s is NOT linearizable: %s", name, key, path)}
		}
	}
	return len(histories), nil
}

// violation is the error of a history that is not linearizable.
type violation struct{ text string }

func (v violation) Error() string { return v.text }
