"""What a stage of a run is: its function, its inputs and outputs, its record and its process."""
